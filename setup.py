"""The one thing pyproject.toml cannot say: an extension that may fail to build.

With a compiler the intake parser is compiled. Without one the install goes on, warns that intake is
slow, and the wheel is tagged as pure. `LIFTLOG_REQUIRE_EXTENSION=1` turns that warning into an error;
`LIFTLOG_PURE=1` does not try.

The extension is built before setuptools asks what kind of wheel this will be, in a folder that is new
and goes again: whether there is an extension is then a fact, not a guess from there being a compiler,
and nothing of an earlier build gets into a wheel.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution

NAME = "broker.ingest._intake"
SOURCE = "broker/ingest/_intake.pyx"
INCLUDED = [str(path) for path in sorted(Path("broker/ingest").glob("*.pxi"))]
WARNING = "liftlog: the compiled intake was not built ({}); the pure-Python one works and is many times slower"


def fresh_folder(purpose: str) -> str:
    folder = tempfile.mkdtemp(prefix=f"liftlog-{purpose}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class FreshBuild(build):
    """Builds in a new folder each time."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = fresh_folder("build")


class TriedBuildExt(build_ext):
    """Copies what `extensions` has compiled already; nothing is compiled twice."""

    def build_extension(self, ext: Extension) -> None:
        target = self.get_ext_fullpath(ext.name)
        self.mkpath(os.path.dirname(target))
        self.copy_file(ext.built, target)


def compile_extension() -> Extension:
    """Compile now, in a folder of its own; the Extension says where as `built`."""
    from Cython.Build import cythonize

    [extension] = cythonize(
        [Extension(NAME, [SOURCE], depends=INCLUDED, extra_compile_args=["-O3"])],
        build_dir=fresh_folder("cython"),
        compiler_directives={"language_level": 3},
    )
    distribution = Distribution({"name": "liftlog-intake", "ext_modules": [extension]})
    command = build_ext(distribution)
    command.build_lib, command.build_temp = fresh_folder("lib"), fresh_folder("temp")
    command.ensure_finalized()
    command.run()
    extension.built = command.get_ext_fullpath(NAME)
    return extension


def extensions() -> list[Extension]:
    """The compiled intake; or nothing, and a warning."""
    if os.environ.get("LIFTLOG_PURE"):
        print(WARNING.format("LIFTLOG_PURE is set"), file=sys.stderr)
        return []
    try:
        return [compile_extension()]
    except BaseException as error:  # distutils ends a failed compilation with SystemExit, too
        if os.environ.get("LIFTLOG_REQUIRE_EXTENSION") or isinstance(error, KeyboardInterrupt):
            raise
        print(WARNING.format(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return []


def builds_something() -> bool:
    """Is this call for more than names and versions? Then it is worth a compilation."""
    return any(command.startswith(("bdist", "build", "develop", "editable", "install")) for command in sys.argv[1:])


setup(
    ext_modules=extensions() if builds_something() else [],
    cmdclass={"build_ext": TriedBuildExt, "build": FreshBuild},
)
