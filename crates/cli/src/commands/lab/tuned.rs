//! `--tune-system`: settings of the system that comparisons want, for the duration of a session.

use std::{fs, path::Path};

use bifold_lab::system::{self, Change};

use crate::{
    failure::{Failure, Result},
    interrupt::Changed,
};

/// The settings are changed while this exists. The old ones are written back on drop, and if the program is
/// interrupted.
#[derive(Debug)]
pub struct Tuned(Vec<Changed>);

impl Tuned {
    /// Changes them, for stores below `data`.
    pub fn new(data: &Path) -> Result<Self> {
        let mut tuned = Self(system::present(data).into_iter().map(|(file, text)| Changed::new(&file, text)).collect());
        for (file, text) in system::wanted(data) {
            set(&(file, text)).inspect_err(|_| tuned.restore())?;
        }
        Ok(tuned)
    }

    fn restore(&mut self) {
        self.0.clear();
    }
}

fn set((file, text): &Change) -> Result<()> {
    fs::write(file, text).map_err(|error| {
        Failure::trouble(format!(
            "cannot write {text} to {}: {error}: --tune-system needs Linux and root; without it the settings are \
             recorded as they are",
            file.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_written_back_when_the_session_ends() {
        let file = std::env::temp_dir().join(format!("bifold-tuned-{}", std::process::id()));
        fs::write(&file, "20").unwrap();
        let mut tuned = Tuned(vec![Changed::new(&file, "20".to_owned())]);
        set(&(file.clone(), "128".to_owned())).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "128");
        tuned.restore();
        assert_eq!(fs::read_to_string(&file).unwrap(), "20");
        fs::remove_file(&file).unwrap();
        let refused = set(&(file.join("none"), "1".to_owned())).unwrap_err();
        assert!(format!("{refused:?}").contains("--tune-system needs"), "{refused:?}");
    }
}
