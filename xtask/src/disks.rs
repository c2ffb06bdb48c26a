//! Real file systems: small images of ext4, XFS and Btrfs are created, mounted through loop devices and filled to the
//! last byte by `bifold-sim disk`. The tests of the append region that need such a disk run there, too.
//!
//! That requires root and the tools of the file systems. If something is missing, one line says what is skipped and
//! why.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::filtered;

/// How much of each image a database may fill; the rest is taken first. XFS creates no image smaller than 300 MB.
const ROOM_BYTES: u64 = 22 << 20;

struct Kind {
    name: &'static str,
    image_bytes: u64,
    make: &'static [&'static str],
    /// The package with the program that creates it.
    package: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind { name: "ext4", image_bytes: 64 << 20, make: &["mkfs.ext4", "-q", "-F"], package: "e2fsprogs" },
    Kind { name: "xfs", image_bytes: 320 << 20, make: &["mkfs.xfs", "-q", "-f"], package: "xfsprogs" },
    Kind {
        name: "btrfs",
        image_bytes: 64 << 20,
        // Mixed: so small a disk has no room for a metadata chunk of its own.
        make: &["mkfs.btrfs", "-q", "-f", "-M", "-m", "single", "-d", "single"],
        package: "btrfs-progs",
    },
];

/// The test of the append region that fills a disk.
const REGION_TEST: &str = "region::fault_tests::a_store_without_a_block_for_it_loses_nothing";

/// Runs everything on the named file systems, or on all.
pub fn run(names: &[String]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| KINDS.iter().all(|kind| kind.name != **name)) {
        return Err(format!("`{unknown}` is not a supported file system: use ext4, xfs or btrfs"));
    }
    if cfg!(not(target_os = "linux")) {
        println!("disks: all skipped: file systems can only be mounted on Linux");
        return Ok(());
    }
    // The profile of the proofs: what was built for them is used again, and checks more.
    crate::cargo(&["build", "--profile", "prove", "-q", "-p", "bifold-sim"])?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let program = target.join("prove/bifold-sim");
    let root = env::temp_dir().join(format!("bifold-disks-{}", std::process::id()));
    fs::create_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    let mut failed = Vec::new();
    for kind in KINDS.iter().filter(|kind| names.is_empty() || names.iter().any(|name| name == kind.name)) {
        match Mounted::new(kind, &root) {
            Err(why) => println!("disks: {} skipped: {why}", kind.name),
            Ok(disk) => failed.extend(fill(kind, &disk, &program).err()),
        }
    }
    let _left_behind = fs::remove_dir_all(&root);
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn fill(kind: &Kind, disk: &Mounted, program: &Path) -> Result<(), String> {
    println!("disks: {}", kind.name);
    let at = disk.path.display().to_string();
    let words = ["test", "-q", "-p", "bifold-io", "--lib", "--", "--ignored", "--exact", REGION_TEST];
    filtered::run_tests(&mut crate::cargo_command(&words, &[("BIFOLD_DISK", at.as_str())]))
        .map_err(|e| format!("{}: the test of the append region: {e}", kind.name))?;
    disk.leave(ROOM_BYTES)?;
    let status =
        Command::new(program).args(["disk", &at]).status().map_err(|e| format!("{}: {e}", program.display()))?;
    if status.success() { Ok(()) } else { Err(format!("{}: checks on a full disk failed", kind.name)) }
}

/// A mounted image, unmounted and deleted on drop.
struct Mounted {
    path: PathBuf,
    image: PathBuf,
}

impl Mounted {
    /// Creates and mounts it, or returns why that is impossible.
    fn new(kind: &Kind, root: &Path) -> Result<Self, String> {
        let (image, path) = (root.join(format!("{}.img", kind.name)), root.join(kind.name));
        let cannot = |e: std::io::Error| e.to_string();
        fs::create_dir_all(&path).map_err(cannot)?;
        fs::File::create(&image).and_then(|file| file.set_len(kind.image_bytes)).map_err(cannot)?;
        let make = || quiet(Command::new(kind.make[0]).args(&kind.make[1..]).arg(&image));
        if make().is_err() {
            // Installs the program if allowed; if not, the next line says what is missing.
            let _may_not = quiet(Command::new("apt-get").args(["install", "-y", "-q", kind.package]));
            make().map_err(|e| format!("{} ({} is needed)", e, kind.package))?;
        }
        quiet(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path))
            .map_err(|e| format!("{e}; mounting an image requires root and a loop device"))?;
        Ok(Self { path, image })
    }

    /// Takes all space but `bytes`.
    fn leave(&self, bytes: u64) -> Result<(), String> {
        // Some file systems only free removed data with this.
        quiet(Command::new("sync").arg("-f").arg(&self.path))?;
        let asked = Command::new("df").args(["--output=avail", "-B1"]).arg(&self.path).output();
        let said = asked.map_err(|e| format!("df: {e}"))?.stdout;
        let said = String::from_utf8_lossy(&said);
        let free: u64 = said.lines().last().and_then(|line| line.trim().parse().ok()).ok_or("df printed nothing")?;
        let taken = free.saturating_sub(bytes).to_string();
        quiet(Command::new("fallocate").args(["-l", &taken]).arg(self.path.join("ballast")))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _said = quiet(Command::new("umount").arg(&self.path)).inspect_err(|e| eprintln!("disks: {e}"));
        let _left_behind = fs::remove_file(&self.image);
    }
}

/// Runs a program. The error is its output.
fn quiet(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(format!("{name}: {}", said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed").trim()))
}
