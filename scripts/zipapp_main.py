"""`__main__.py` of the zip application: unpacks it once into the user's cache folder, and runs windlass from there.

msgspec is a compiled module, which Python cannot import out of a zip. Nothing newer than Python 3.6 is used here, so
that an old interpreter gets a sentence and not a SyntaxError.
"""

import os
import platform
import shutil
import stat
import sys
import tempfile
import zipfile

MARK = "windlass-zipapp"
OLDEST = (3, 10)


def fail(text):
    sys.stderr.write("windlass: error: %s\n" % text)
    sys.exit(3)


def unpacked(archive):
    """The folder with the modules, made where it is not there yet. Complete when it has its name."""
    with zipfile.ZipFile(archive) as held:
        tag = "deps/%s-%s/" % (sys.implementation.cache_tag, platform.machine())
        names = [name for name in held.namelist() if not name.startswith("deps/") or name.startswith(tag)]
        if not any(name.startswith(tag) for name in names):
            known = sorted({name.split("/")[1] for name in held.namelist() if name.startswith("deps/")})
            fail(
                "this file holds no msgspec for %s, but for %s: use one of these, or pip"
                % (tag[5:-1], ", ".join(known))
            )
        build = held.read(MARK).decode().strip()
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(cache, "windlass", "zipapp", "%s-%s" % (build, tag[5:-1]))
        if not os.path.isdir(folder):
            os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
            fresh = tempfile.mkdtemp(dir=os.path.dirname(folder))  # mode 0700
            try:
                held.extractall(fresh, names)
                os.rename(fresh, folder)
            except OSError:
                shutil.rmtree(fresh, ignore_errors=True)
                if not os.path.isdir(folder):  # nobody else was quicker
                    raise
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        fail("%s is not yours alone: remove it, or set XDG_CACHE_HOME" % folder)
    return folder, os.path.join(folder, tag[:-1])


def main():
    if sys.version_info < OLDEST:
        fail("Python %d.%d is too old: start this file with python3.%d or newer" % (sys.version_info[:2] + OLDEST[1:]))
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        if os.path.isdir(here):
            folder, deps = (
                here,
                os.path.join(here, "deps", "%s-%s" % (sys.implementation.cache_tag, platform.machine())),
            )
        else:
            folder, deps = unpacked(here)
    except OSError as error:
        fail("cannot unpack: %s (XDG_CACHE_HOME names another place)" % error)
    sys.path[:1] = [folder, deps]
    words = sys.argv[1:]
    if words[:1] == ["-m"] and len(words) > 1 and words[1].split(".")[0] == "windlass":
        import runpy

        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        from windlass.cli.main import entry

        entry()


if __name__ == "__main__":
    main()
