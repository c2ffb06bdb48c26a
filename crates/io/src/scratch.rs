//! Buffers of each thread, for bytes that are looked at and then copied from or thrown away.
//!
//! They stay in the processor's cache; a new one would have to be allocated, zeroed and freed.

use std::cell::RefCell;

/// Longer ones are not kept.
pub const SCRATCH_BYTES: usize = 24 << 10;

thread_local! {
    /// Those that nobody uses: as many as were in use at once.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `use_it` with `len` bytes, whatever is in them. Beyond [`SCRATCH_BYTES`], and while the thread ends, they are
/// allocated.
#[inline]
pub fn with_scratch<T>(len: usize, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    if len > SCRATCH_BYTES {
        return use_it(&mut vec![0; len]);
    }
    let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
    let mut buffer = spare.unwrap_or_else(|| vec![0; SCRATCH_BYTES]);
    let answer = use_it(&mut buffer[..len]);
    // While the thread ends, it is freed.
    let _kept = SPARE.try_with(|spare| spare.borrow_mut().push(buffer));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_within_uses_do_not_share_bytes() {
        with_scratch(10, |outer| {
            outer.fill(1);
            with_scratch(20, |inner| inner.fill(2));
            assert_eq!(outer, [1; 10]);
        });
        assert_eq!(SPARE.with_borrow(Vec::len), 2, "both are kept");
        with_scratch(10, |again| assert_eq!(again, [1; 10], "and used again"));
        assert_eq!(with_scratch(SCRATCH_BYTES + 1, |long| long.len()), SCRATCH_BYTES + 1);
    }
}
