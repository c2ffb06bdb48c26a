//! The engine's part in tests of one GC job.

use bifold_contract::{Pointer, Result, SeqNo, ValueEdit};

use super::{Commits, GcContext, IndexView, Moved, RewrittenTables};

/// What a job finds when it is run. A call that the test does not expect panics.
pub(crate) trait Scene {
    fn look_up(&self, _key: &[u8]) -> Result<Option<Pointer>> {
        panic!("the index was asked")
    }

    fn relocate(&self, _moves: &[Moved], _refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
        panic!("the index was written to")
    }

    fn hold_commits(&self, _act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool> {
        panic!("commits were held")
    }

    fn rewrite(&self, _tables: RewrittenTables<'_>) -> Result<u64> {
        panic!("tables were rewritten")
    }

    fn install(&self, _edit: &mut dyn FnMut() -> ValueEdit, _in_force: &mut dyn FnMut()) -> Result<()> {
        panic!("an edit was installed")
    }
}

impl<S: Scene> IndexView for S {
    fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
        Scene::look_up(self, key)
    }
}

impl<S: Scene> GcContext for S {
    fn fit(&self, copies: &[u64]) -> Result<usize> {
        Ok(copies.len())
    }

    fn relocate(&self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
        Scene::relocate(self, moves, refused)
    }

    fn hold_commits(&self, act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool> {
        Scene::hold_commits(self, act)
    }

    fn rewrite(&self, tables: RewrittenTables<'_>) -> Result<u64> {
        Scene::rewrite(self, tables)
    }

    fn install(
        &self,
        _copied: Option<SeqNo>,
        edit: &mut dyn FnMut() -> ValueEdit,
        in_force: &mut dyn FnMut(),
    ) -> Result<()> {
        Scene::install(self, edit, in_force)
    }
}
