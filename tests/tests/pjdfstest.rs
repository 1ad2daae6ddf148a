//! The POSIX suite against a mount: exactly the cases on the list fail.

use xtfs_tests::suite::pjdfstest::{Known, Verdict, run};
use xtfs_tests::{TestCell, require};

const KNOWN: &str = include_str!("../pjdfstest-known-failures.toml");

#[test]
fn posix_calls_behave_but_for_the_listed_cases() {
    require(&["pjdfstest"]);
    let known = Known::parse(KNOWN);
    let mut cell = TestCell::up(1);
    let verdicts = run(cell.path(), cell.scratch());
    let count = |wanted| {
        verdicts
            .values()
            .filter(|verdict| **verdict == wanted)
            .count()
    };
    let (passed, failed) = (count(Verdict::Passed), count(Verdict::Failed));
    println!(
        "{passed} passed, {failed} failed, {} skipped",
        count(Verdict::Skipped)
    );
    let surprises = known.surprises(&verdicts);
    assert!(
        surprises.is_empty(),
        "not as listed:\n{}",
        surprises.join("\n")
    );
    assert!(passed + failed >= 384, "only {} cases ran", passed + failed);
    assert!(
        passed * 100 >= (passed + failed) * 85,
        "only {passed} cases pass"
    );
    cell.stop();
}
