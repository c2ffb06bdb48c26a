//! Combining operands.
//!
//! ```text
//! base │ 1 │ 2 │ 3 │ 4        combine(base, combine(combine(1, 2), combine(3, 4)))
//! ```
//!
//! An operator is associative, so neighbours are combined first: n operands that are appended are copied log n times,
//! not n times, and the base once. An operator that cannot combine two operands is called from the base on, one operand
//! after the other.

use std::borrow::Cow;

use bifold_contract::{Result, planted};

/// The function of an operator, called with what is older and an operand.
pub(super) type CombineTwo<'a> = dyn Fn(Option<&[u8]>, &[u8]) -> Result<Vec<u8>> + 'a;

/// Combines `operands`, the newest first and at least one, with what is older.
///
/// # Errors
/// That of the function.
pub(super) fn combine_all<O: AsRef<[u8]>>(
    combine: &CombineTwo<'_>,
    older: Option<&[u8]>,
    operands: &[O],
) -> Result<Vec<u8>> {
    if let Ok(newer) = combine_neighbours(combine, operands) {
        let whole = combine(older, &newer);
        if whole.is_ok() || operands.len() < 2 {
            return whole;
        }
    }
    let mut value: Option<Vec<u8>> = None;
    for operand in operands.iter().rev() {
        value = Some(combine(value.as_deref().or(older), operand.as_ref())?);
    }
    Ok(value.unwrap_or_default())
}

fn combine_neighbours<'o, O: AsRef<[u8]>>(combine: &CombineTwo<'_>, operands: &'o [O]) -> Result<Cow<'o, [u8]>> {
    let (newer, older) = match operands {
        [] => return Ok(Cow::Borrowed(&[])),
        [one] => return Ok(Cow::Borrowed(one.as_ref())),
        all => all.split_at(all.len() / 2),
    };
    let (newer, older) = (combine_neighbours(combine, newer)?, combine_neighbours(combine, older)?);
    let (older, newer) = if planted!("operands_change_places") { (newer, older) } else { (older, newer) };
    combine(Some(&older), &newer).map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bifold_contract::Error;

    use super::*;

    #[test]
    fn operands_keep_their_order_and_are_copied_few_times() {
        let copied = Cell::new(0);
        let append = |older: Option<&[u8]>, newer: &[u8]| {
            let both = [older.unwrap_or_default(), newer].concat();
            copied.set(copied.get() + both.len());
            Ok(both)
        };
        for n in 1..200_usize {
            let operands: Vec<_> = (0..n).rev().map(|n| format!("{n},").into_bytes()).collect();
            let expected: Vec<u8> = operands.iter().rev().flatten().copied().collect();
            assert_eq!(combine_all(&append, None, &operands).unwrap(), expected);
            copied.set(0);
            let base = vec![b'x'; 100_000];
            assert_eq!(combine_all(&append, Some(&base), &operands).unwrap(), [&base[..], &expected].concat());
            let rounds = n.next_power_of_two().ilog2() as usize + 1;
            assert!(copied.get() <= base.len() + rounds * expected.len(), "{n}: {}", copied.get());
        }
    }

    #[test]
    fn what_cannot_be_combined_among_themselves_is_combined_from_the_base_on() {
        let refuses = |older: Option<&[u8]>, newer: &[u8]| match older {
            Some(older) if older.first() == Some(&b'+') => Err(Error::invalid("operand", "not below another one")),
            older => Ok([older.unwrap_or(b"="), &newer[1..]].concat()),
        };
        let operands = ["+3", "+2", "+1"];
        assert_eq!(combine_all(&refuses, Some(b"=0"), &operands).unwrap(), b"=0123");
        assert_eq!(combine_all(&refuses, None, &operands).unwrap(), b"=123");
        assert!(combine_all(&refuses, Some(b"+"), &operands).is_err());
    }
}
