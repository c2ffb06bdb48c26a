//! How a transaction begins, and how one is tried again.

use std::time::Duration;

use bifold_contract::{Error, Result};
use bifold_io::random::{Random, mix};

use crate::{api::db::Db, settings::options::Durability, transaction::handle::Transaction};

/// The first wait before another try is at most this long, and each further one twice as long.
const WAIT_FIRST: Duration = Duration::from_micros(50);

/// No wait is longer.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// Against which changes by others a transaction is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// All transactions that write something have effects and answers as if they had been run one after the other, in
    /// the order of their commits. Everything that was read is checked. The default.
    #[default]
    Serializable,
    /// Only what is written, and what was read by [`Transaction::get_for_update`], must have the same values as when
    /// the transaction began. Two transactions that each read what the other writes may both be committed (write skew).
    Snapshot,
}

/// How a transaction is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionOptions {
    /// Against what it is protected. Default: [`Isolation::Serializable`].
    pub isolation: Isolation,
    /// What its commit survives; `None`, the default: [`Options::durability`](crate::Options::durability).
    pub durability: Option<Durability>,
    /// How often [`Db::transact_with`] tries; 0 counts as 1. Default: 16.
    pub tries_max: u32,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self { isolation: Isolation::default(), durability: None, tries_max: 16 }
    }
}

impl Db {
    /// Begins a serializable transaction: see [`Transaction`].
    pub fn transaction(&self) -> Transaction {
        self.transaction_with(TransactionOptions::default())
    }

    /// Begins a transaction with these options.
    ///
    /// ```
    /// use bifold::{Isolation, TransactionOptions};
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-transaction-with-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # let ks = db.default_keyspace();
    /// let options = TransactionOptions { isolation: Isolation::Snapshot, ..TransactionOptions::default() };
    /// let mut tx = db.transaction_with(options);
    /// tx.put(ks, "key", "value")?;
    /// tx.commit()?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    pub fn transaction_with(&self, options: TransactionOptions) -> Transaction {
        Transaction::begin(self.handle(), options)
    }

    /// Runs `work` in a serializable transaction and commits it. After a conflict it waits for a random time, up to 20
    /// ms, and runs `work` again in a new one, up to 16 times in all. Returns what `work` returned the last time.
    ///
    /// `work` may run several times, so nothing outside the transaction should follow from what it does. An error that
    /// it returns ends the transaction without a commit, and is returned.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-transact-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # let accounts = db.keyspace("accounts", bifold::KeyspaceOptions::default())?;
    /// # accounts.put("ada", 10u64.to_be_bytes())?;
    /// let balance = |value: Option<bifold::Value>| value.map_or(0, |v| u64::from_be_bytes(v[..].try_into().unwrap()));
    /// let is_paid = db.transact(|tx| {
    ///     let (from, to) = (balance(tx.get(&accounts, "ada")?), balance(tx.get(&accounts, "grace")?));
    ///     let Some(rest) = from.checked_sub(7) else { return Ok(false) };
    ///     tx.put(&accounts, "ada", rest.to_be_bytes())?;
    ///     tx.put(&accounts, "grace", (to + 7).to_be_bytes())?;
    ///     Ok(true)
    /// })?;
    /// assert!(is_paid);
    /// assert_eq!(balance(accounts.get("grace")?), 7);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `work`; [`Error::Conflict`] when each try ended with one; as [`Transaction::commit`].
    pub fn transact<T>(&self, work: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        self.transact_with(TransactionOptions::default(), work)
    }

    /// [`Db::transact`] with these options.
    ///
    /// # Errors
    /// As [`Db::transact`].
    pub fn transact_with<T>(
        &self,
        options: TransactionOptions,
        mut work: impl FnMut(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            let mut transaction = self.transaction_with(options);
            let snapshot = transaction.snapshot();
            let done = work(&mut transaction).and_then(|answer| transaction.commit().map(|_| answer));
            tries += 1;
            match done {
                Err(Error::Conflict { .. }) if tries < options.tries_max => self.wait_before(tries, snapshot),
                done => return done,
            }
        }
    }

    /// Waits for a random part of a time that grows with each try, so that those who met do not meet again.
    fn wait_before(&self, tries: u32, snapshot: u64) {
        let clock = &self.engine().env.clock;
        let most = WAIT_FIRST.saturating_mul(1 << (tries - 1).min(16)).min(WAIT_MAX);
        let now = u64::try_from(clock.now().as_nanos()).unwrap_or(u64::MAX);
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        clock.sleep(Duration::from_nanos(Random::new(mix(now) ^ snapshot).below(most)));
    }
}
