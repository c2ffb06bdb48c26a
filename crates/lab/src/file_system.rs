//! The file system of a directory. The costs of syncing, creating and removing files depend on it as much as on the
//! store, so figures of one file system say little about another.

use std::{fs, path::Path};

/// The type of the file system of an existing directory, such as `ext4` or `tmpfs`; `None` if the system does not
/// report it, which only Linux does.
#[must_use]
pub fn type_of(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    among(&mounts, dir.as_os_str().as_encoded_bytes())
}

/// The type of the mount with the longest mount point that contains `dir`. Of two at one point the later one counts.
fn among(mounts: &[u8], dir: &[u8]) -> Option<String> {
    let mounts = mounts.split(|&byte| byte == b'\n').filter_map(mount).filter(|(point, _)| leads(point, dir));
    mounts.max_by_key(|(point, _)| point.len()).map(|(_, name)| String::from_utf8_lossy(name).into_owned())
}

/// Mount point and type of a line: the fifth field, and the first one after a lone hyphen. Optional fields may precede
/// the hyphen.
fn mount(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut fields = line.split(|&byte| byte == b' ');
    let point = fields.nth(4)?;
    let name = fields.skip_while(|&field| field != b"-").nth(1)?;
    Some((unescaped(point), name))
}

/// A field in which spaces, line ends and backslashes are a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let (byte, after) = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                (((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'), after)
            }
            _ => (*first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    bytes
}

/// Whether `dir` is `point` or below it. `/data` does not lead to `/database`.
fn leads(point: &[u8], dir: &[u8]) -> bool {
    let below = dir.strip_prefix(point);
    below.is_some_and(|below| below.is_empty() || below.starts_with(b"/") || point.ends_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = br"22 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw
23 22 0:5 / /dev rw,nosuid - devtmpfs devtmpfs rw
24 23 0:20 / /dev/shm rw - tmpfs tmpfs rw
25 22 0:30 / /data rw - xfs /dev/b rw
26 22 0:31 / /data\040of\134mine rw shared:7 - btrfs /dev/c rw
27 25 0:32 / /data rw - zfs pool rw
a line of another kind
28 22 0:33 / /cut
";

    #[test]
    fn the_longest_mount_point_decides_and_the_later_of_two() {
        for (dir, expected) in [
            ("/", "ext4"),
            ("/home/results", "ext4"),
            ("/dev/shm", "tmpfs"),
            ("/dev/shm/stores", "tmpfs"),
            ("/dev/shmem", "devtmpfs"),
            ("/data/stores", "zfs"),
            ("/database", "ext4"),
            (r"/data of\mine/stores", "btrfs"),
            ("/cut/short", "ext4"),
        ] {
            assert_eq!(among(MOUNTS, dir.as_bytes()).as_deref(), Some(expected), "{dir}");
        }
        assert_eq!(among(b"", b"/"), None);
    }

    #[test]
    fn linux_tells_of_every_directory_and_nobody_of_one_that_is_not_there() {
        let here = type_of(Path::new("."));
        assert_eq!(here.is_some(), cfg!(target_os = "linux"), "{here:?}");
        assert_eq!(type_of(Path::new("a directory that is not there")), None);
    }
}
