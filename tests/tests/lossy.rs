//! A network that loses, doubles and reorders packets between all parts of a cell.

use std::sync::atomic::Ordering;
use std::time::Duration;

use xtfs_tests::proxy::{Proxy, Weather};
use xtfs_tests::suite::copy::Copy;
use xtfs_tests::suite::{Suite, verify_all, work_all};
use xtfs_tests::{TestCell, require, seed_from_env};

const WEATHER: Weather = Weather {
    loss: 0.02,
    double: 0.02,
    late: 0.05,
    late_max: Duration::from_millis(15),
};

#[test]
fn a_tree_is_copied_over_a_bad_network() {
    require(&["cp", "diff", "rsync"]);
    let seed = seed_from_env("XTFS_LOSSY_SEED");
    let mut proxies = Vec::new();
    let mut cell = TestCell::cluster_with(2, |_, server| {
        let proxy = Proxy::start(server, WEATHER, seed.wrapping_add(proxies.len() as u64));
        let address = proxy.address();
        proxies.push(proxy);
        Some(address)
    });
    let outside = cell.scratch().folder("outside");
    let mut suites: Vec<Box<dyn Suite>> = vec![Box::new(Copy::of(300, 0))];
    work_all(&mut suites, cell.path(), &outside);
    cell.remount();
    verify_all(&suites, cell.path(), &outside);
    cell.stop();
    for proxy in &proxies {
        let counts = proxy.counts();
        println!("{counts:?}");
        for count in [&counts.seen, &counts.lost, &counts.doubled, &counts.late] {
            assert!(
                count.load(Ordering::Relaxed) > 0,
                "the network was not bad: {counts:?}"
            );
        }
    }
}
