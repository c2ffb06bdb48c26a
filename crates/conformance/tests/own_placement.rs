//! The battery for a placement of one's own: the example of the crate `bifold`.

#[allow(dead_code, reason = "its `main` is another program")]
#[path = "../../bifold/examples/own_placement.rs"]
mod example;

bifold_conformance::battery! {
    own: bifold_conformance::Case::own(example::NAME, example::AppendOnly::open);
}
