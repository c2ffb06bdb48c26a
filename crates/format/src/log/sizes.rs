//! Which sizes keys and values of operations may have. Whoever commits has checked them, and memtables rely on that: a
//! log with others was not written by a release, whatever its checksums say.

use bifold_contract::{Corruption, MAX_KEY_LEN, MAX_VALUE_LEN, expiry::INSTANT_BYTES};

use super::Operation;
use crate::bytes::Input;

/// The operation that was decoded from `start` on, if it may be.
///
/// # Errors
/// If its key is empty, or that or its value is longer than any that may be stored.
pub(super) fn checked<'a>(operation: Operation<'a>, start: &Input<'_>) -> Result<Operation<'a>, Corruption> {
    let (key, payload_bytes) = match operation {
        Operation::Put { key, value, .. } => (key, value.len()),
        Operation::PutUntil { key, value, .. } => (key, value.len() + INSTANT_BYTES),
        Operation::Pointer { key, pointer, .. } => (key, pointer.len()),
        Operation::PointerUntil { key, payload, .. } => (key, payload.len()),
        Operation::Merge { key, operand, .. } => (key, operand.len()),
        Operation::Large { key, named, .. } => (key, named.len()),
        Operation::Delete { key, .. } => (key, 0),
        // Bounds need not be keys.
        Operation::DeleteRange { .. } => return Ok(operation),
    };
    if (1..=MAX_KEY_LEN).contains(&key.len()) && payload_bytes <= MAX_VALUE_LEN {
        return Ok(operation);
    }
    let expected = format!("a key of 1 to {MAX_KEY_LEN} bytes with at most {MAX_VALUE_LEN} more");
    Err(start.damage(expected, format!("a key of {} bytes with {payload_bytes} more", key.len())))
}
