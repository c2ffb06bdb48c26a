//! Where the values of a file have moved without a write to the index. Page: `docs/formats/value.md`.
//!
//! ```text
//! forwarding file   header │ description │ forwards of one value file │ forwards of another │ …
//!
//! forwards          a record; its number is that of the file the values were in; its body:
//!                   count varint │ count × output file varint │ rows × row
//! row, 10 B         old offset u32 │ new offset u32 │ which output u16       ascending by old offset
//! ```
//!
//! A row has the offsets of two records with the same length, key, number and kind.

use bifold_contract::{Corruption, FileId};

use crate::{
    bytes::{Input, put_varint},
    value::{self, Stored, ValueKind},
};

/// Bytes of a row.
pub const ROW_BYTES: u64 = 10;

/// Where one value has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Where its record stood in the old file.
    pub from: u32,
    /// Where it is in the new one.
    pub to: u32,
    /// Which of the output files that is.
    pub output: u16,
}

/// Where the values of one file have moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwards {
    /// The files they are in now.
    pub outputs: Vec<FileId>,
    /// One row for each value, ascending by its old offset.
    pub rows: Vec<Row>,
}

/// Appends the forwards of `file` to `out`.
pub fn encode(out: &mut Vec<u8>, place: (FileId, u64), file: FileId, forwards: &Forwards) {
    let mut body = Vec::with_capacity(10 + 10 * forwards.outputs.len() + ROW_BYTES as usize * forwards.rows.len());
    put_varint(&mut body, forwards.outputs.len() as u64);
    forwards.outputs.iter().for_each(|&output| put_varint(&mut body, output));
    for row in &forwards.rows {
        body.extend_from_slice(&row.from.to_le_bytes());
        body.extend_from_slice(&row.to.to_le_bytes());
        body.extend_from_slice(&row.output.to_le_bytes());
    }
    value::encode(out, place, ValueKind::Forwards, file, &[], Stored::plain(&body));
}

/// Reads the body of a record of forwards.
///
/// # Errors
/// If it is none: rows in another order, or of an output that does not exist, included.
pub fn decode(body: &[u8]) -> Result<Forwards, Corruption> {
    let mut input = Input::new(body, "forwards");
    let count = input.varint_up_to(body.len() as u64)?;
    let outputs = (0..count).map(|_| input.varint()).collect::<Result<Vec<FileId>, Corruption>>()?;
    let at = input;
    let rest = input.rest();
    let (rows, left) = rest.as_chunks::<{ ROW_BYTES as usize }>();
    if !left.is_empty() {
        return Err(at.damage(format!("rows of {ROW_BYTES} bytes"), format!("{} bytes", rest.len())));
    }
    let rows: Vec<Row> = rows
        .iter()
        .map(|&[a, b, c, d, e, f, g, h, i, j]| Row {
            from: u32::from_le_bytes([a, b, c, d]),
            to: u32::from_le_bytes([e, f, g, h]),
            output: u16::from_le_bytes([i, j]),
        })
        .collect();
    if !rows.is_sorted_by(|a, b| a.from < b.from) {
        return Err(at.damage("rows ascending by their old offsets", "rows that do not"));
    }
    if let Some(row) = rows.iter().find(|row| usize::from(row.output) >= outputs.len()) {
        return Err(at.damage(format!("one of {} outputs", outputs.len()), format!("output {}", row.output)));
    }
    Ok(Forwards { outputs, rows })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame;

    fn body_of(forwards: &Forwards) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&mut bytes, (9, 100), 4, forwards);
        let frame::Step::Record(frame, len) = frame::step(&bytes, 9, 100) else { panic!("no record") };
        assert_eq!((len, frame.number), (bytes.len(), 4));
        value::decode(frame).unwrap().body().to_vec()
    }

    proptest! {
        #[test]
        fn forwards_come_back(outputs in prop::collection::vec(any::<u64>(), 1..5), offsets: Vec<(u32, u32, u16)>) {
            let few = outputs.len() as u16;
            let mut rows: Vec<Row> =
                offsets.into_iter().map(|(from, to, nth)| Row { from, to, output: nth % few }).collect();
            rows.sort_unstable();
            rows.dedup_by_key(|row| row.from);
            let forwards = Forwards { outputs, rows };
            prop_assert_eq!(decode(&body_of(&forwards)).unwrap(), forwards);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
            let _any_answer = decode(&bytes);
        }
    }

    #[test]
    fn rows_out_of_order_and_unknown_outputs_are_damage() {
        let row = |from, output| Row { from, to: 7, output };
        let of = |rows: Vec<Row>| decode(&body_of(&Forwards { outputs: vec![5], rows }));
        assert!(of(vec![row(1, 0), row(2, 0)]).is_ok());
        assert!(of(vec![row(2, 0), row(1, 0)]).is_err());
        assert!(of(vec![row(1, 0), row(1, 0)]).is_err());
        assert!(of(vec![row(1, 1)]).is_err());
        assert!(decode(&[1, 5, 0, 0]).is_err(), "half a row");
    }
}
