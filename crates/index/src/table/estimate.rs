//! How much of a table lies in a key range, by its index alone.

use bifold_contract::Result;

use super::Table;

impl Table {
    /// Which part of its entries and bytes lies in `start..end` (`None`: no end), from 0 to 1. Each bound that lies in
    /// the table is taken for the middle of the block that may have it: the bytes are wrong by at most half a block for
    /// each of them. Reads no block.
    ///
    /// # Errors
    /// I/O errors and corruption, of the index.
    pub fn share(&self, start: &[u8], end: Option<&[u8]>) -> Result<f64> {
        if !self.has_entries() || end.is_some_and(|end| *end <= *self.meta.smallest) {
            return Ok(0.0);
        }
        let from = if *start <= *self.meta.smallest { 0 } else { self.offset_of(start)? };
        let to = match end {
            Some(end) if *end <= *self.meta.largest => self.offset_of(end)?,
            _ => self.file.footer.data_bytes,
        };
        Ok(to.saturating_sub(from) as f64 / self.file.footer.data_bytes as f64)
    }

    /// Where the middle of the first block is that may have `key`; the end of the data if there is none.
    fn offset_of(&self, key: &[u8]) -> Result<u64> {
        // Asked once: what this loads may be the reason to hold the whole index from now on.
        let is_part = self.is_read_in_parts();
        let content = if is_part {
            let top = self.top_to_hold()?;
            let parts = self.parse_top(&top)?;
            match parts.find(key) {
                part if part < parts.blocks() => self.part(&parts, part)?,
                _ => return Ok(self.file.footer.data_bytes),
            }
        } else {
            match self.index_to_hold()? {
                Some(index) => index,
                None => return Ok(0),
            }
        };
        let index = if is_part { self.parse_part(&content)? } else { self.parse(&content)? };
        match index.find(key) {
            block if block < index.blocks() => {
                let place = self.file.place(&index, block)?;
                Ok(place.start + place.len() / 2)
            }
            _ => Ok(self.file.footer.data_bytes),
        }
    }
}
