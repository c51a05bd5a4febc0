from __future__ import annotations

import errno
import hashlib
import os

import pytest

from trainbook.checkpoints import CheckpointStore, folder
from trainbook.checkpoints.folder import human_bytes, plain_words, remove, replace_file, write_file
from trainbook.contained import fsync_folder


def test_a_file_is_written_whole_even_when_the_system_takes_a_byte_at_a_time(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data[:1])))
    fact = write_file(tmp_path / "file", [b"one", memoryview(b" two"), b""])
    assert (tmp_path / "file").read_bytes() == b"one two"
    assert (fact.size, fact.sha256) == (7, hashlib.sha256(b"one two").hexdigest())


def test_pieces_larger_than_one_write_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "WRITE_BYTES", 3)
    assert write_file(tmp_path / "file", [b"0123456789"]).size == 10
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_name_that_exists_is_never_written_over(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_text() == "old"


def test_replacing_a_file_leaves_no_temporary_one(tmp_path):
    (tmp_path / "file").write_text("old")
    replace_file(tmp_path / "file", tmp_path / "temporary", b"new")
    assert (tmp_path / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_removing_what_is_gone_is_no_error(tmp_path):
    remove(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    remove(tmp_path / "link")
    assert (tmp_path / "folder" / "file").exists()
    remove(tmp_path / "folder")
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_fsync_of_folders_is_accepted_and_an_error_is_not(tmp_path, monkeypatch):
    def fail(code):
        def fsync(file):
            raise OSError(code, os.strerror(code))

        return fsync

    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    fsync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        fsync_folder(tmp_path)


def test_errors_are_said_in_plain_words():
    assert plain_words(OSError(errno.EROFS, "Read-only file system", "/x")) == (
        "the file system is mounted read-only (Read-only file system: /x)"
    )
    assert plain_words(OSError(errno.EBUSY, "Device or resource busy")) == "Device or resource busy"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (9_999, "9999 bytes"),
        (10_000, "10.00 kB (10000 bytes)"),
        (2 * 10**12, "2.00 TB (2000000000000 bytes)"),
    ],
)
def test_sizes_read_well_and_stay_exact(count, words):
    assert human_bytes(count) == words


def test_everything_is_on_the_disk_before_a_checkpoint_gets_its_name(tmp_path, monkeypatch, state_of, on_event, events):
    """After a power cut only what was fsynced is left: no file, no entry of a folder may be unsynced at a rename."""
    unsynced: set[int] = set()
    renamed: list[str] = []
    real_open, real_write, real_fsync, real_rename, real_mkdir, real_unlink = (
        os.open,
        os.write,
        os.fsync,
        os.rename,
        os.mkdir,
        os.unlink,
    )

    def inode(path):
        return os.stat(path).st_ino

    def watched_open(path, flags, *rest, **named):
        file = real_open(path, flags, *rest, **named)
        if flags & os.O_CREAT:
            unsynced.update((os.fstat(file).st_ino, inode(os.path.dirname(path))))
        return file

    def watched_write(file, data):
        unsynced.add(os.fstat(file).st_ino)
        return real_write(file, data)

    def watched_fsync(file):
        real_fsync(file)
        unsynced.discard(os.fstat(file).st_ino)

    def watched_mkdir(path, *rest, **named):
        real_mkdir(path, *rest, **named)
        unsynced.add(inode(path))

    def watched_rename(source, target, **named):
        name = os.path.basename(target)
        if name.startswith("step-"):
            inside = [os.path.join(source, entry) for entry in os.listdir(source)]
            assert len(inside) == 5, "the best mark, two tensor files, the state and the marker"
            assert not unsynced & {inode(path) for path in [source, *inside]}
        real_rename(source, target, **named)
        renamed.append(name)
        unsynced.add(inode(os.path.dirname(target)))

    def watched_unlink(path, *rest, **named):
        assert inode(tmp_path) not in unsynced, "the names must be durable before anything is deleted"
        real_unlink(path, *rest, **named)

    store = CheckpointStore(tmp_path, save_total_limit=1, on_event=on_event)
    store.save(1, state_of(1), is_best=True)
    for name, watched in {
        "open": watched_open,
        "write": watched_write,
        "fsync": watched_fsync,
        "mkdir": watched_mkdir,
        "rename": watched_rename,
        "unlink": watched_unlink,
    }.items():
        monkeypatch.setattr(os, name, watched)
    store.save(2, state_of(2), is_best=True)
    store.save(2, state_of(2, 0.5), is_best=True)
    mine = os.getpid()
    assert renamed == [
        "step-00000002",
        f".deleting-step-00000001-{mine}",
        f".replaced-step-00000002-{mine}",
        "step-00000002",
    ]
    assert inode(tmp_path) not in unsynced
