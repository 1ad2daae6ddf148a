//! POSIX access control lists (POSIX.1e draft 17, as Linux has them), without the file they belong to.
//!
//! Bytes as in the attributes `system.posix_acl_access` and `system.posix_acl_default`, which is
//! also how they are stored. All integers are little endian.
//!
//! ```text
//! list  = version u32 (2) · entry*
//! entry = tag u16 · permissions u16 (4 read, 2 write, 1 execute) · id u32
//! tag     1 owner · 2 user `id` · 4 owning group · 8 group `id` · 16 mask · 32 others
//! ```
//!
//! Entries stand in the order of their tags. There is one each for owner, owning group and others,
//! at most one mask, and a mask where users or groups are named. Where an access list has a mask,
//! the group bits of the file's mode are the mask.

use xtfs_protocol::meta::Caller;
use xtfs_protocol::{Code, Error, Result};

const VERSION: u32 = 2;
/// Most entries that are accepted: what fits into an attribute.
const ENTRIES_MAX: usize = 8191;
/// The id of entries that name nobody.
const NO_ID: u32 = u32::MAX;

/// The two lists that an inode may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AclKind {
    /// Who may do what with it.
    Access = 0,
    /// What is made in this directory starts with it.
    Default = 1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner = 1,
    User = 2,
    OwningGroup = 4,
    Group = 8,
    Mask = 16,
    Others = 32,
}

impl Tag {
    const ALL: [Tag; 6] = [
        Tag::Owner,
        Tag::User,
        Tag::OwningGroup,
        Tag::Group,
        Tag::Mask,
        Tag::Others,
    ];

    const fn names_someone(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permissions: u8,
    id: u32,
}

/// A list that keeps all the rules above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Reads a list; `None` when it has no entries, which asks for its removal.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>> {
        let Some((version, rest)) = bytes.split_first_chunk::<4>() else {
            return Err(wrong("its version is missing"));
        };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Code::Unsupported.into());
        }
        let (chunks, []) = rest.as_chunks::<8>() else {
            return Err(wrong("an entry is cut"));
        };
        if chunks.is_empty() {
            return Ok(None);
        }
        if chunks.len() > ENTRIES_MAX {
            return Err(wrong("it has too many entries"));
        }
        let entries: Result<Vec<Entry>> = chunks.iter().map(decode_entry).collect();
        let acl = Self(entries?);
        acl.check()?;
        Ok(Some(acl))
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            bytes.extend_from_slice(&u16::from(entry.permissions).to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    fn check(&self) -> Result<()> {
        let ascending = self.0.windows(2).all(|pair| match pair {
            [one, two] => one.tag < two.tag || (one.tag == two.tag && one.tag.names_someone()),
            _ => true,
        });
        if !ascending {
            return Err(wrong("its entries are out of order or doubled"));
        }
        let needed = [Tag::Owner, Tag::OwningGroup, Tag::Others];
        if needed.iter().any(|tag| self.permissions(*tag).is_none()) {
            return Err(wrong("an entry for owner, group or others is missing"));
        }
        let names = self.0.iter().any(|entry| entry.tag.names_someone());
        if names && self.permissions(Tag::Mask).is_none() {
            return Err(wrong("it names users or groups and has no mask"));
        }
        Ok(())
    }

    fn permissions(&self, tag: Tag) -> Option<u8> {
        let entry = self.0.iter().find(|entry| entry.tag == tag)?;
        Some(entry.permissions)
    }

    fn set(&mut self, tag: Tag, permissions: u8) {
        for entry in self.0.iter_mut().filter(|entry| entry.tag == tag) {
            entry.permissions = permissions;
        }
    }

    /// The entry that the group bits of a mode stand for.
    fn group_class(&self) -> Tag {
        match self.permissions(Tag::Mask) {
            Some(_) => Tag::Mask,
            None => Tag::OwningGroup,
        }
    }

    /// Whether it says more than nine mode bits can.
    pub fn is_extended(&self) -> bool {
        self.group_class() == Tag::Mask
    }

    /// The nine mode bits that it stands for.
    pub fn mode(&self) -> u16 {
        let bits = |tag| u16::from(self.permissions(tag).unwrap_or(0));
        bits(Tag::Owner) << 6 | bits(self.group_class()) << 3 | bits(Tag::Others)
    }

    /// The same list after a change of the mode.
    pub fn with_mode(mut self, mode: u16) -> Self {
        let bits = |shift: u16| (mode >> shift & 7) as u8;
        self.set(Tag::Owner, bits(6));
        self.set(self.group_class(), bits(3));
        self.set(Tag::Others, bits(0));
        self
    }

    /// The access list of what is made in a directory with this default list: what the maker asks
    /// for limits what the list gives.
    pub fn inherited(self, mode: u16) -> Self {
        let limited = self.mode() & mode;
        self.with_mode(limited)
    }

    /// Whether it allows all of `mask` to a caller who is neither root nor the owner. `mode` is the
    /// file's, `gid` its group.
    pub fn allows(&self, caller: &Caller, gid: u32, mode: u16, mask: u8) -> bool {
        let limit = (mode >> 3 & 7) as u8;
        let grants = |permissions: u8| permissions & limit & mask == mask;
        let user = |entry: &&Entry| entry.tag == Tag::User && entry.id == caller.uid;
        if let Some(entry) = self.0.iter().find(user) {
            return grants(entry.permissions);
        }
        let is_in = |gid: u32| caller.gid == gid || caller.groups.contains(&gid);
        let mut groups = self.0.iter().filter(|entry| match entry.tag {
            Tag::OwningGroup => is_in(gid),
            Tag::Group => is_in(entry.id),
            _ => false,
        });
        match groups.next() {
            Some(first) => {
                grants(first.permissions) || groups.any(|entry| grants(entry.permissions))
            }
            None => mode as u8 & mask == mask,
        }
    }
}

fn decode_entry(bytes: &[u8; 8]) -> Result<Entry> {
    let [t0, t1, p0, p1, id @ ..] = *bytes;
    let (tag, permissions) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([p0, p1]));
    let tag = Tag::ALL.into_iter().find(|known| *known as u16 == tag);
    let tag = tag.ok_or_else(|| wrong("a tag is unknown"))?;
    if permissions > 7 {
        return Err(wrong("permissions are out of range"));
    }
    let id = u32::from_le_bytes(id);
    if tag.names_someone() && id == NO_ID {
        return Err(wrong("an id is missing"));
    }
    Ok(Entry {
        tag,
        permissions: permissions as u8,
        id: if tag.names_someone() { id } else { NO_ID },
    })
}

fn wrong(why: &str) -> Error {
    Error::new(Code::Invalid, format!("access control list: {why}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A list in the notation of `getfacl`, such as `u::rw-,u:1000:r--,g::r--,m::r--,o::---`.
    pub(crate) fn list(text: &str) -> Vec<u8> {
        let entries = text.split(',').map(|entry| {
            let mut parts = entry.split(':');
            let (tag, id) = (parts.next().unwrap(), parts.next().unwrap());
            let tag: u16 = match (tag, id.is_empty()) {
                ("u", true) => 1,
                ("u", false) => 2,
                ("g", true) => 4,
                ("g", false) => 8,
                ("m", _) => 16,
                ("o", _) => 32,
                _ => panic!("{entry}"),
            };
            let id = id.parse().unwrap_or(NO_ID);
            let bits = parts.next().unwrap().chars().zip([4u16, 2, 1]);
            let permissions = bits.filter(|(c, _)| *c != '-').map(|(_, bit)| bit).sum();
            (tag, permissions, id)
        });
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            let (tag, permissions): (u16, u16) = (tag, permissions);
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    fn acl(text: &str) -> Acl {
        Acl::decode(&list(text)).unwrap().unwrap()
    }

    fn refused(text: &str) -> Code {
        Acl::decode(&list(text)).unwrap_err().code
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller {
            uid,
            gid,
            groups: groups.to_vec(),
            ..Caller::default()
        }
    }

    #[test]
    fn lists_against_the_rules_are_refused() {
        assert_eq!(refused("u::rwx,g::r-x"), Code::Invalid);
        assert_eq!(refused("u::rwx,u:7:rwx,g::r-x,o::---"), Code::Invalid);
        assert_eq!(refused("g::r-x,u::rwx,o::---"), Code::Invalid);
        assert_eq!(refused("u::rwx,u::rwx,g::r-x,o::---"), Code::Invalid);
        let mut other_version = list("u::rwx,g::r-x,o::---");
        other_version[0] = 1;
        let refused = Acl::decode(&other_version).unwrap_err();
        assert_eq!(refused.code, Code::Unsupported);
        assert_eq!(Acl::decode(&[2, 0, 0, 0]).unwrap(), None);
        assert!(Acl::decode(&[2, 0, 0]).is_err());
    }

    #[test]
    fn the_mask_is_the_group_bits_of_the_mode() {
        let plain = acl("u::rw-,g::r--,o::---");
        assert!(!plain.is_extended());
        assert_eq!(plain.mode(), 0o640);
        let extended = acl("u::rw-,u:7:rwx,g::r--,m::rw-,o::---");
        assert!(extended.is_extended());
        assert_eq!(extended.mode(), 0o660);
        let changed = extended.with_mode(0o741);
        assert_eq!(changed, acl("u::rwx,u:7:rwx,g::r--,m::r--,o::--x"));
    }

    #[test]
    fn who_asks_for_less_gets_less() {
        let default = acl("u::rwx,u:7:rwx,g::rwx,m::rwx,o::r-x");
        let made = default.inherited(0o640);
        assert_eq!(made, acl("u::rw-,u:7:rwx,g::rwx,m::r--,o::---"));
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let acl = acl("u::rwx,u:7:r--,g::--x,g:20:r--,g:30:-w-,m::rw-,o::r-x");
        let (gid, mode) = (10, acl.mode());
        let may = |caller: Caller, mask| acl.allows(&caller, gid, mode, mask);
        assert!(may(caller(7, 30, &[]), 4));
        assert!(!may(caller(7, 30, &[]), 2), "the user's entry alone counts");
        assert!(may(caller(8, 20, &[30]), 4));
        assert!(may(caller(8, 20, &[30]), 2));
        assert!(!may(caller(8, 20, &[30]), 6), "no single group gives both");
        assert!(!may(caller(8, 10, &[]), 1), "the mask takes it away");
        assert!(
            !may(caller(8, 20, &[]), 1),
            "others do not count for members"
        );
        assert!(may(caller(9, 9, &[]), 5));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut bytes = bytes;
            if let Some(version) = bytes.first_chunk_mut::<4>() {
                *version = VERSION.to_le_bytes();
            }
            if let Ok(Some(acl)) = Acl::decode(&bytes) {
                prop_assert_eq!(Acl::decode(&acl.encode()).unwrap(), Some(acl));
            }
        }

        #[test]
        fn a_list_without_names_is_its_mode(mode in 0u16..0o1000, uid in 0u32..3, mask in 0u8..8) {
            let acl = acl("u::---,g::---,o::---").with_mode(mode);
            prop_assert_eq!(acl.mode(), mode);
            let member = caller(uid, 10, &[]);
            prop_assert_eq!(acl.allows(&member, 10, mode, mask), (mode >> 3) as u8 & mask == mask);
            let other = caller(uid, 11, &[]);
            prop_assert_eq!(acl.allows(&other, 10, mode, mask), mode as u8 & mask == mask);
        }
    }
}
