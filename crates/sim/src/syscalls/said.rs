//! What a writer has said before it was killed or stopped.

use crate::model::CommitNo;

/// Bytes of an acknowledgement: the writer, then the commit's number.
const ACK_BYTES: usize = 9;

/// What a writer has acknowledged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// The last commit of each thread.
    pub acked: Vec<CommitNo>,
    /// What a checkpoint has of each thread: at least this commit, and at most that one.
    pub checkpoint: Option<Vec<(CommitNo, CommitNo)>>,
}

impl Said {
    /// What `out` says of so many threads. The first makes a checkpoint between two of its commits. Others may make
    /// commits meanwhile, and one more of each may be in progress when the checkpoint is acknowledged.
    pub fn of(out: &[u8], writers: u8) -> Self {
        let mut said = Self { acked: vec![0; usize::from(writers)], checkpoint: None };
        let mut before = said.acked.clone();
        for ack in out.chunks_exact(ACK_BYTES) {
            let n = ack[1..].first_chunk::<8>().map_or(0, |n| CommitNo::from_le_bytes(*n));
            match said.acked.get_mut(usize::from(ack[0])) {
                Some(last) => *last = n,
                None => {
                    let until = said.acked.iter().enumerate().map(|(writer, &acked)| acked + u64::from(writer > 0));
                    said.checkpoint = Some(before.iter().copied().zip(until).collect());
                }
            }
            if ack[0] == 0 {
                before.clone_from(&said.acked);
            }
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acks(all: &[(u8, CommitNo)]) -> Vec<u8> {
        all.iter().flat_map(|(writer, n)| [&[*writer][..], &n.to_le_bytes()].concat()).collect()
    }

    #[test]
    fn a_checkpoint_has_what_was_acknowledged_before_it_began_and_perhaps_what_came_meanwhile() {
        let checkpoint = super::super::CHECKPOINT;
        let out = acks(&[(0, 1), (1, 1), (0, 2), (1, 2), (checkpoint, 2), (1, 3), (0, 3)]);
        let said = Said { acked: vec![3, 3], checkpoint: Some(vec![(2, 2), (1, 3)]) };
        assert_eq!(Said::of(&out, 2), said);
        assert_eq!(Said::of(&acks(&[(0, 1), (0, 2)]), 1), Said { acked: vec![2], checkpoint: None });
    }
}
