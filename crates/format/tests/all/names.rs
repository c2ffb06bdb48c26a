//! Names of files.

use bifold_format::names::{self, FileKind};
use proptest::prelude::*;

proptest! {
    #[test]
    fn names_are_recognised_again(id in 0..=names::NUMBER_MAX, shift in 0u32..62) {
        let id = id >> shift;
        prop_assert_eq!(names::parse(&names::log(id)), FileKind::Log(id));
        prop_assert_eq!(names::parse(&names::table(id)), FileKind::Table(id));
        prop_assert_eq!(names::parse(&names::value(id)), FileKind::Value(id));
        prop_assert_eq!(names::parse(&names::large(id)), FileKind::Large(id));
        prop_assert_eq!(names::parse(&names::ingest(id)), FileKind::Ingest(id));
        prop_assert!(names::log(id).len() >= "000000.log".len());
    }

    #[test]
    fn a_recognised_name_has_the_form_that_is_written(name in "[0-9+]{1,22}\\.(log|tbl|val|tmp)") {
        let written = match names::parse(&name) {
            FileKind::Log(id) => names::log(id),
            FileKind::Table(id) => names::table(id),
            FileKind::Value(id) => names::value(id),
            FileKind::Large(id) => names::large(id),
            FileKind::Ingest(id) => names::ingest(id),
            other => {
                prop_assert_eq!(other, FileKind::Unknown);
                return Ok(());
            }
        };
        prop_assert_eq!(written, name);
    }
}
