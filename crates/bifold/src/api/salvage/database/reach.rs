//! Which numbers the logs have operations of, and which are lost.
//!
//! ```text
//! log 7  │ 11 … 19 │ 20 … 24 │ damaged │ 31 … 40 │       lost: 25 to 30
//! log 9  │ 41 … 50 │ skip to 60 │ 60 … 75 │ torn         lost: from 76 on; nothing is missing between 60 and 75
//! ```

use bifold_contract::{SeqNo, planted};

use super::logs::RecordNumbers;

/// What the logs have.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// The number behind the last whole record.
    next: SeqNo,
    /// From this number on, up to the last whole record, no operation is missing, nor taken by an ingest.
    whole_from: SeqNo,
    /// Whether something is lost between the last whole record and the next.
    is_broken: bool,
    /// RecordNumbers of which some may be lost, both included.
    lost: Vec<(SeqNo, SeqNo)>,
    /// Whether any others may be lost, too.
    lacks_any: bool,
}

impl Reach {
    /// A record that is whole. They come in the order of the logs.
    pub fn record(&mut self, RecordNumbers { first, next, is_skip }: RecordNumbers) {
        if first < self.next {
            // A crash took back commits that an older log still has. Which of these is not known.
            self.lost.push((first, self.next - 1));
            self.whole_from = self.next.max(next);
        } else if self.is_broken {
            // Something of this record may be lost, too, but nothing with a larger number.
            let since = self.lost.iter_mut().rev().take_while(|(from, _)| *from == self.next);
            since.for_each(|(_, to)| *to = next.saturating_sub(1).min(*to));
            self.whole_from = next;
        } else if first > self.next {
            self.whole_from = first;
        }
        if is_skip {
            self.whole_from = next;
        }
        self.next = self.next.max(next);
        self.is_broken = false;
    }

    /// Operations up to this number are lost behind the last whole record.
    pub fn lose(&mut self, upto: SeqNo) {
        self.lost.push((self.next, upto));
        self.is_broken = true;
    }

    /// Operations up to this number are lost that a walk before has seen.
    pub fn lose_again(&mut self, upto: SeqNo) {
        self.lost.push((0, upto));
        self.whole_from = self.whole_from.max(upto.saturating_add(1));
    }

    /// Any operations may be lost, wherever they were.
    pub fn lose_any(&mut self) {
        self.lacks_any = true;
    }

    /// Whether logs have all operations with larger numbers, up to the last that is found.
    pub fn is_whole_above(&self, seqno: SeqNo) -> bool {
        self.whole_from > 0 && self.whole_from <= seqno + 1
    }

    /// Whether an operation may be lost with a number above the first and not above the second.
    pub fn lacks_some(&self, above: SeqNo, upto: SeqNo) -> bool {
        let may_be_between = |&(from, to): &(SeqNo, SeqNo)| from <= upto && to > above;
        let lacks = self.lacks_any || self.lost.iter().any(may_be_between);
        lacks && !planted!("salvage_overlooks_lost_operands")
    }
}

#[cfg(test)]
mod tests {
    use bifold_contract::key::MAX_SEQNO;

    use super::*;

    fn numbers(first: SeqNo, next: SeqNo) -> RecordNumbers {
        RecordNumbers { first, next, is_skip: false }
    }

    #[test]
    fn what_is_missing_is_between_whole_records() {
        let mut reach = Reach::default();
        assert!(!reach.is_whole_above(0), "there are no logs");
        reach.record(numbers(11, 20));
        reach.record(numbers(20, 25));
        assert!(reach.is_whole_above(10) && !reach.is_whole_above(9) && !reach.lacks_some(0, 24));
        reach.lose(30);
        assert!(reach.is_whole_above(10), "what is lost is newer");
        assert!(!reach.lacks_some(10, 24) && reach.lacks_some(10, 25) && !reach.lacks_some(30, 90));
        reach.record(numbers(31, 41));
        reach.record(numbers(41, 51));
        assert!(!reach.is_whole_above(10) && reach.is_whole_above(40));
        reach.record(RecordNumbers { is_skip: true, ..numbers(51, 60) });
        reach.record(numbers(60, 76));
        assert!(!reach.is_whole_above(58) && reach.is_whole_above(59) && !reach.lacks_some(30, 75));
        // A log that begins anew before the end of the one before it.
        reach.record(numbers(70, 72));
        assert!(!reach.is_whole_above(74) && reach.is_whole_above(75) && reach.lacks_some(60, 70));
        // The end of a log, and the beginning of the next.
        reach.lose(MAX_SEQNO);
        assert!(reach.lacks_some(75, 76) && reach.lacks_some(500, 600));
        reach.record(numbers(90, 91));
        assert!(reach.lacks_some(75, 76) && !reach.lacks_some(90, 600));
        reach.record(numbers(91, 92));
        assert!(!reach.is_whole_above(89) && reach.is_whole_above(90));
        reach.lose_any();
        assert!(reach.lacks_some(90, 91));
    }
}
