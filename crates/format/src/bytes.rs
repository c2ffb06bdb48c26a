//! Integer encoding, and decoding that cannot read past the end.

use bifold_contract::Corruption;

/// Longest LEB128 form of a `u64`.
pub const VARINT_BYTES_MAX: usize = 10;

/// Appends `value` in LEB128: seven bits per byte, the lowest first.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length and the bytes.
#[inline]
pub fn put_slice(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Bytes being decoded. Every method returns a whole item or a [`Corruption`] with the offset from the start of the
/// input.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
    len: usize,
    what: &'static str,
}

impl<'a> Input<'a> {
    /// Decodes `bytes`, a structure called `what`.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, len: bytes.len(), what }
    }

    /// Bytes decoded so far.
    #[inline]
    #[must_use]
    pub fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    /// Bytes not decoded yet.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether all bytes are decoded.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Damage at the current position.
    #[cold]
    #[must_use]
    pub fn damage(&self, expected: impl Into<String>, found: impl Into<String>) -> Corruption {
        Corruption::new(self.position() as u64, self.what, expected, found)
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Corruption> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.damage(format!("{count} more bytes"), format!("{} bytes", self.rest.len()))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Corruption> {
        match self.rest.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => Err(self.damage(format!("{N} more bytes"), format!("{} bytes", self.rest.len()))),
        }
    }

    /// One byte.
    ///
    /// # Errors
    /// At the end.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Corruption> {
        self.array::<1>().map(|b| b[0])
    }

    /// Four bytes.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Corruption> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Corruption> {
        self.array().map(u64::from_le_bytes)
    }

    /// A LEB128 number.
    ///
    /// # Errors
    /// If it has no end or does not fit in 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Corruption> {
        match self.rest.first() {
            Some(&byte) if byte < 0x80 => {
                self.rest = &self.rest[1..];
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Corruption> {
        let mut value = 0u64;
        for (at, &byte) in self.rest.iter().take(VARINT_BYTES_MAX).enumerate() {
            if at == VARINT_BYTES_MAX - 1 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7F) << (7 * at);
            if byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(self.damage("a number of at most 64 bits", "a longer one"))
    }

    /// A LEB128 number of at most 32 bits.
    ///
    /// # Errors
    /// As [`Input::varint`], and when it is larger.
    #[inline]
    pub fn varint32(&mut self) -> Result<u32, Corruption> {
        let at = *self;
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| at.damage("a number of at most 32 bits", value.to_string()))
    }

    /// A LEB128 number of at most `max`.
    ///
    /// # Errors
    /// As [`Input::varint`], and when it is larger.
    #[inline]
    pub fn varint_up_to(&mut self, max: u64) -> Result<u64, Corruption> {
        let at = *self;
        let value = self.varint()?;
        if value <= max { Ok(value) } else { Err(at.damage(format!("a number of at most {max}"), value.to_string())) }
    }

    /// A length and that many bytes.
    ///
    /// # Errors
    /// If fewer are left.
    #[inline]
    pub fn slice(&mut self) -> Result<&'a [u8], Corruption> {
        let len = self.varint()?;
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// If something is.
    pub fn end(&self) -> Result<(), Corruption> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.damage("the end", format!("{} more bytes", self.rest.len())))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_and_slices_come_back(numbers: Vec<u64>, text: Vec<u8>) {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|&n| put_varint(&mut bytes, n));
            put_slice(&mut bytes, &text);
            let mut input = Input::new(&bytes, "test");
            for &n in &numbers {
                prop_assert_eq!(input.varint().unwrap(), n);
            }
            prop_assert_eq!(input.slice().unwrap(), &text[..]);
            prop_assert!(input.end().is_ok());
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(bytes: Vec<u8>) {
            let mut input = Input::new(&bytes, "test");
            while input.slice().is_ok() && !input.is_empty() {}
            let mut input = Input::new(&bytes, "test");
            while input.varint32().is_ok() {}
        }
    }

    #[test]
    fn a_number_beyond_64_bits_is_refused() {
        assert!(Input::new(&[0xFF; 11], "test").varint().is_err());
        let mut most = vec![0xFF; 9];
        most.push(1);
        assert_eq!(Input::new(&most, "test").varint().unwrap(), u64::MAX);
        most[9] = 2;
        assert!(Input::new(&most, "test").varint().is_err());
        assert_eq!(Input::new(&[9], "test").varint_up_to(9).unwrap(), 9);
        assert!(Input::new(&[9], "test").varint_up_to(8).is_err());
    }
}
