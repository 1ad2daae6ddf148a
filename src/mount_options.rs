//! What `-o` takes: the words of mount(8) and fstab(5), and our own.
//!
//! One line, separated by commas. A value with a comma in it is written `key="a,b"` or `key=a\,b`:
//! mount(8) hands both on as they are. Of two words that contradict each other the later one counts.

use std::path::PathBuf;
use std::time::Duration;

use xtfs_client::fuse::MountFlags;

use crate::sizes;

/// Longest time that operations may wait for a server, in seconds: a day.
const TIMEOUT_SECS_MAX: u64 = 24 * 60 * 60;

/// Flags that a word sets, and whether it sets or clears them.
const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("lazytime", MountFlags::LAZYTIME, true),
    ("nolazytime", MountFlags::LAZYTIME, false),
    // What mount(8) promises of mounts that users may make.
    ("user", SECURE, true),
    ("users", SECURE, true),
    ("owner", OWNED, true),
    ("group", OWNED, true),
];

const OWNED: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const SECURE: MountFlags = OWNED.union(MountFlags::NOEXEC);

/// Words that change nothing here: mount(8), systemd and fstab mean them for themselves, or they
/// ask for what is always so.
const ACCEPTED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nouser",
    "nofail",
    "_netdev",
    "silent",
    "loud",
    "nonempty",
    "default_permissions",
    "acl",
    "user_xattr",
    "strictatime",
    "nostrictatime",
];

/// The same for words with a value; the last three stand in the mount table, from where mount(8)
/// takes them for a remount.
const ACCEPTED_KEYS: &[&str] = &["comment", "user", "user_id", "group_id", "rootmode"];

/// What a line of options asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSettings {
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// Every user may use the mount.
    pub allow_other: bool,
    /// An existing mount is to be changed.
    pub remount: bool,
    /// Folder of the cell.
    pub cell: Option<PathBuf>,
    /// Data folder of a running `xtfs up`.
    pub data: Option<PathBuf>,
    /// Bytes of file content that are cached.
    pub cache: Option<u64>,
    /// How long an operation waits for a server.
    pub timeout: Option<Duration>,
    /// What is logged.
    pub log: Option<String>,
    /// Where to.
    pub log_file: Option<PathBuf>,
}

impl Default for MountSettings {
    fn default() -> Self {
        Self {
            flags: MountFlags::empty(),
            allow_other: false,
            remount: false,
            cell: None,
            data: None,
            cache: None,
            timeout: None,
            log: None,
            log_file: None,
        }
    }
}

/// One word of the line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Flags(MountFlags, bool),
    AllowOther,
    Remount,
    Cell(PathBuf),
    Data(PathBuf),
    Cache(u64),
    Timeout(Duration),
    Log(String),
    LogFile(PathBuf),
    Accepted,
}

impl MountSettings {
    /// Understands lines of options, one after the other. With `sloppy`, unknown words are passed
    /// over.
    pub fn parse<'a>(
        lines: impl IntoIterator<Item = &'a str>,
        sloppy: bool,
    ) -> Result<Self, String> {
        let mut settings = Self::default();
        for text in lines.into_iter().flat_map(split) {
            match word(&text) {
                Ok(word) => settings.apply(word),
                Err(Refused::Unknown) if sloppy => {}
                Err(Refused::Unknown) => {
                    return Err(format!(
                        "mount option {text:?}: there is none of that name; `xtfs help mount` \
                         lists them"
                    ));
                }
                Err(Refused::Value(reason)) => {
                    return Err(format!("mount option {text:?}: {reason}"));
                }
            }
        }
        Ok(settings)
    }

    fn apply(&mut self, word: Word) {
        match word {
            Word::Flags(flags, on) => self.flags.set(flags, on),
            Word::AllowOther => self.allow_other = true,
            Word::Remount => self.remount = true,
            Word::Cell(dir) => self.cell = Some(dir),
            Word::Data(dir) => self.data = Some(dir),
            Word::Cache(bytes) => self.cache = Some(bytes),
            Word::Timeout(limit) => self.timeout = Some(limit),
            Word::Log(filter) => self.log = Some(filter),
            Word::LogFile(file) => self.log_file = Some(file),
            Word::Accepted => {}
        }
    }
}

enum Refused {
    Unknown,
    Value(String),
}

fn word(text: &str) -> Result<Word, Refused> {
    if let Some((_, flags, on)) = FLAGS.iter().find(|(name, ..)| *name == text) {
        return Ok(Word::Flags(*flags, *on));
    }
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (text, None),
    };
    let accepted = match value {
        None => ACCEPTED.contains(&text),
        Some(_) => ACCEPTED_KEYS.contains(&key),
    };
    // Whoever writes `x-` words reads them as well: systemd, desktops, mount(8) itself.
    if accepted || text.starts_with("x-") || text.starts_with("X-") {
        return Ok(match key {
            "user" => Word::Flags(SECURE, true),
            _ => Word::Accepted,
        });
    }
    match (key, value) {
        ("allow_other", None) => Ok(Word::AllowOther),
        ("remount", None) => Ok(Word::Remount),
        ("cell", Some(dir)) => folder(dir).map(Word::Cell),
        ("data", Some(dir)) => folder(dir).map(Word::Data),
        ("log_file", Some(file)) => folder(file).map(Word::LogFile),
        ("log", Some(filter)) => Ok(Word::Log(filter.to_owned())),
        ("cache", Some(size)) => sizes::parse(size).map(Word::Cache).map_err(Refused::Value),
        ("timeout", Some(secs)) => seconds(secs).map(Word::Timeout),
        (
            "allow_other" | "remount" | "cell" | "data" | "log_file" | "log" | "cache" | "timeout",
            _,
        ) => Err(Refused::Value(match value {
            Some(_) => "takes no value".to_owned(),
            None => "needs a value".to_owned(),
        })),
        _ => Err(Refused::Unknown),
    }
}

/// A path whose meaning does not depend on where mount(8) was called.
fn folder(text: &str) -> Result<PathBuf, Refused> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(Refused::Value("has to be an absolute path".to_owned()))
    }
}

fn seconds(text: &str) -> Result<Duration, Refused> {
    match text.parse() {
        Ok(secs @ 1..=TIMEOUT_SECS_MAX) => Ok(Duration::from_secs(secs)),
        _ => Err(Refused::Value(format!(
            "has to be a number of seconds from 1 to {TIMEOUT_SECS_MAX}"
        ))),
    }
}

/// The words of a line, without quotes and backslashes.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => quoted = !quoted,
            '\\' if matches!(letters.peek(), Some(',' | '\\' | '"')) => word.extend(letters.next()),
            ',' if !quoted => words.push(std::mem::take(&mut word)),
            letter => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<MountSettings, String> {
        MountSettings::parse([line], false)
    }

    #[test]
    fn a_line_of_fstab_is_understood() {
        let line = "defaults,noauto,nofail,_netdev,x-systemd.automount,\
            x-systemd.idle-timeout=10min,comment=x,noatime,nodev,acl";
        let settings = parse(line).unwrap();
        assert_eq!(settings.flags, MountFlags::NOATIME | MountFlags::NODEV);
        assert_eq!(parse("").unwrap(), MountSettings::default());
    }

    #[test]
    fn our_own_options_have_values_and_values_may_have_commas() {
        let line = r#"cell="/srv/a,b",log_file=/var/log/a\,b.log,cache=64M,timeout=5,log="warn,xtfs_osd=debug",ro"#;
        let settings = parse(line).unwrap();
        assert_eq!(settings.cell, Some("/srv/a,b".into()));
        assert_eq!(settings.log_file, Some("/var/log/a,b.log".into()));
        assert_eq!(settings.cache, Some(64 << 20));
        assert_eq!(settings.timeout, Some(Duration::from_secs(5)));
        assert_eq!(settings.log.as_deref(), Some("warn,xtfs_osd=debug"));
        assert_eq!(settings.flags, MountFlags::RDONLY);
    }

    #[test]
    fn the_later_of_two_words_counts_also_across_lines() {
        assert_eq!(parse("ro,rw").unwrap().flags, MountFlags::empty());
        let settings = MountSettings::parse(["user,exec", "ro"], false).unwrap();
        assert_eq!(
            settings.flags,
            MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY
        );
    }

    #[test]
    fn what_the_mount_table_says_is_accepted_for_a_remount() {
        let line = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount";
        let settings = parse(line).unwrap();
        assert!(settings.remount && settings.allow_other);
        assert_eq!(settings.flags, MountFlags::RELATIME);
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name_unless_asked_to_be_sloppy() {
        for (line, reason) in [
            ("ro,raed", "\"raed\": there is none"),
            ("ro=1", "\"ro=1\": there is none"),
            ("cell", "needs a value"),
            ("cell=here", "absolute path"),
            ("remount=1", "takes no value"),
            ("timeout=0", "number of seconds"),
            ("cache=lots", "is not a size"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
        let settings = MountSettings::parse(["raed,ro"], true).unwrap();
        assert_eq!(settings.flags, MountFlags::RDONLY);
        assert!(MountSettings::parse(["cell=here"], true).is_err());
    }
}
