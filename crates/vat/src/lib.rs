//! The VAT cost model of insert-path amplification, as pure functions.
