//! Threads of transactions, without anomalies: see `bifold_sim::transactions`.

use bifold_sim::{
    report::{over_seeds, scaled},
    transactions::run,
};

#[test]
fn no_history_has_an_anomaly() {
    let histories = scaled(400);
    let least = [
        ("histories", histories),
        ("power losses", histories / 50),
        ("serializable transactions committed", 1),
        ("reads for update", histories),
        ("puts that expire at once", histories / 10),
        ("ingests", histories / 10),
        ("commits fed", histories / 10),
    ];
    over_seeds(0..histories, run).finish("transactions", &least);
}
