//! What is measured: one list with key, title and unit of every row.

/// What a rate counts in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Unit {
    /// Mebibytes.
    #[serde(rename = "MiB/s")]
    Mebibytes,
    /// Operations.
    #[serde(rename = "op/s")]
    Operations,
}

impl Unit {
    /// As in a table.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Mebibytes => "MiB/s",
            Self::Operations => "op/s",
        }
    }
}

/// Measures that are taken together, on the same files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// One large file.
    Data,
    /// Empty files in one directory.
    Names,
    /// Small files with content.
    Small,
}

impl Group {
    /// All groups in their order.
    pub const ALL: &'static [Self] = &[Self::Data, Self::Names, Self::Small];
}

macro_rules! measures {
    ($($name:ident: $key:literal, $title:literal, $unit:ident;)*) => {
        /// One row of the table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Measure { $($name,)* }

        impl Measure {
            /// All rows in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name for programs.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// Its name for people.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// What its rate counts.
            pub const fn unit(self) -> Unit {
                match self { $(Self::$name => Unit::$unit,)* }
            }
        }
    };
}

measures! {
    SequentialWrite: "sequential_write", "sequential write, then fsync", Mebibytes;
    SequentialRead: "sequential_read", "sequential read", Mebibytes;
    CachedRead: "cached_read", "sequential read, again", Mebibytes;
    RandomRead: "random_read_4k", "random read 4 KiB", Operations;
    RandomWrite: "random_write_4k", "random write 4 KiB, then fsync", Operations;
    RandomWriteSync: "random_write_4k_fsync", "random write 4 KiB + fsync each", Operations;
    Create: "create", "create", Operations;
    Stat: "stat", "stat", Operations;
    Open: "open", "open + close", Operations;
    Readdir: "readdir", "readdir (entries)", Operations;
    Unlink: "unlink", "unlink", Operations;
    SmallWrite: "small_write", "small file: create + write", Operations;
    SmallRead: "small_read", "small file: open + read", Operations;
    SmallWriteSync: "small_write_fsync", "small file: create + write + fsync", Operations;
}
