"""The one thing pyproject.toml cannot say: extensions that may fail to build.

With a compiler the intake parser, the checks of messages, the client's gathering, its JSON decoder and the records of
Liftbridge's clients are compiled. Without one the install goes on, warns that these are slow and the decoder is
missing, and the wheel is tagged as pure.
`LIFTLOG_REQUIRE_EXTENSION=1` turns that warning into an error; `LIFTLOG_PURE=1` does not try.
`LIFTLOG_COMPILE_ARGS="-O0 -g0"` compiles quickly what nobody will run for long.

The extensions are built before setuptools asks what kind of wheel this will be, in a folder that is new
and goes again: whether there are extensions is then a fact, not a guess from there being a compiler,
and nothing of an earlier build gets into a wheel.
"""

import atexit
import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution

sources_digest = runpy.run_path("broker/api/compiled.py")["sources_digest"]

SOURCES = {
    "broker.api._checked": "broker/api/_checked.pyx",
    "broker.ingest._intake": "broker/ingest/_intake.pyx",
    "broker.api.gathered._gathering": "broker/api/gathered/_gathering.pyx",
    "broker.client.payload._json": "broker/client/payload/_json.pyx",
    "broker.serving.liftbridge._records": "broker/serving/liftbridge/_records.pyx",
}
WARNING = (
    "liftlog: the compiled intake and gathering were not built ({}); the pure-Python ones work, the intake is many"
    " times slower, Spark and clients of Liftbridge somewhat slower; payload=json is refused, whose decoder has no"
    " pure-Python form"
)


def fresh_folder(purpose: str) -> str:
    folder = tempfile.mkdtemp(prefix=f"liftlog-{purpose}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class FreshBuild(build):
    """Builds in a new folder each time."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = fresh_folder("build")


class CopyExtension(build_ext):
    """Copies what `compiled` has compiled already; nothing is compiled twice."""

    def build_extension(self, ext: Extension) -> None:
        target = self.get_ext_fullpath(ext.name)
        self.mkpath(os.path.dirname(target))
        self.copy_file(ext.built, target)


def described() -> list[Extension]:
    """The extensions as sources, which is all that a source distribution wants."""
    return [
        Extension(
            name,
            [source],
            define_macros=[("LIFTLOG_SOURCES", f'"{sources_digest(Path(source).parent)}"')],
            depends=[str(path) for path in sorted(Path(source).parent.glob("*.pxi"))],
            extra_compile_args=os.environ.get("LIFTLOG_COMPILE_ARGS", "-O3 -g0").split(),
        )
        for name, source in SOURCES.items()
    ]


def compiled() -> list[Extension]:
    """The extensions, compiled in a folder of its own; `built` says where."""
    from Cython.Build import cythonize

    modules = cythonize(
        described(), build_dir=fresh_folder("cython"), compiler_directives={"language_level": 3}, quiet=True
    )
    command = build_ext(Distribution({"name": "liftlog-compiled", "ext_modules": modules}))
    command.build_lib, command.build_temp = fresh_folder("lib"), fresh_folder("temp")
    command.parallel = len(modules)
    command.ensure_finalized()
    command.run()
    found = described()
    for extension in found:
        extension.built = command.get_ext_fullpath(extension.name)
    return found


def extensions() -> list[Extension]:
    """The compiled extensions; or nothing, and a warning."""
    if not any(command.startswith(("bdist", "build", "develop", "editable", "install")) for command in sys.argv[1:]):
        return described()
    if os.environ.get("LIFTLOG_PURE"):
        print(WARNING.format("LIFTLOG_PURE is set"), file=sys.stderr)
        return []
    try:
        return compiled()
    except Exception as error:  # no compiler, no Cython, no Python headers: all the same here
        if os.environ.get("LIFTLOG_REQUIRE_EXTENSION"):
            raise
        print(WARNING.format(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return []


setup(ext_modules=extensions(), cmdclass={"build_ext": CopyExtension, "build": FreshBuild})
