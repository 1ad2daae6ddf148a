//! Stands for a test that ends in one way or another: `xtfs-test-abandon up|cluster
//! return|panic|wait`. Sets up a cell, works in it, prints `working in FOLDER`, and ends so.

use std::io::Read;

use xtfs_tests::TestCell;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [shape, end] = arguments[..] else {
        eprintln!("usage: xtfs-test-abandon up|cluster return|panic|wait");
        std::process::exit(2);
    };
    let cell = match shape {
        "up" => TestCell::up(1),
        _ => TestCell::cluster(1),
    };
    std::fs::write(cell.path().join("file"), "work").expect("write a file");
    let open = std::fs::File::open(cell.path().join("file")).expect("open it");
    println!("working in {}", cell.scratch().path().display());
    match end {
        "return" => {}
        "panic" => panic!("this test fails"),
        _ => {
            // Until it is killed: nothing ever comes from this socket.
            let (mut end, _other) = std::os::unix::net::UnixStream::pair().expect("a socket");
            let _ = end.read(&mut [0]);
        }
    }
    drop(open);
}
