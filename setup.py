"""The one thing pyproject.toml cannot say: an extension that may fail to build.

With a compiler the intake parser is compiled. Without one the install goes on, warns that intake is
slow, and the wheel is tagged as pure. `LIFTLOG_REQUIRE_EXTENSION=1` turns that warning into an error;
`LIFTLOG_PURE=1` does not try.
"""

import os
import shutil
import sys
import tempfile

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution

NAME = "broker.ingest._intake"
SOURCE = "broker/ingest/_intake.pyx"
WARNING = "liftlog: the compiled intake was not built ({}); the pure-Python one works and is many times slower"


class OptionalBuildExt(build_ext):
    """Builds what it can; a failure is a warning unless the environment insists."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            if os.environ.get("LIFTLOG_REQUIRE_EXTENSION"):
                raise
            print(WARNING.format(error), file=sys.stderr)


class FreshBuild(build):
    """Builds in a new folder each time, so that nothing from an earlier build gets into a wheel."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = tempfile.mkdtemp(prefix="liftlog-build-")

    def run(self) -> None:
        try:
            super().run()
        finally:
            if not getattr(self, "editable_mode", False):
                self.distribution.liftlog_build_base = self.build_base


class MaybePure(Distribution):
    """Tags the wheel for a platform only if the extension is in it."""

    def has_ext_modules(self) -> bool:
        return bool(self.ext_modules) and _can_compile()


def _can_compile() -> bool:
    return not os.environ.get("LIFTLOG_PURE") and any(shutil.which(name) for name in ("cc", "gcc", "clang"))


def _extensions() -> list[Extension]:
    if not _can_compile():
        print(WARNING.format("no C compiler"), file=sys.stderr)
        return []
    from Cython.Build import cythonize

    return cythonize(
        [Extension(NAME, [SOURCE], extra_compile_args=["-O3"])],
        build_dir=tempfile.mkdtemp(prefix="liftlog-cython-"),
        compiler_directives={"language_level": 3},
    )


setup(ext_modules=_extensions(), cmdclass={"build_ext": OptionalBuildExt, "build": FreshBuild}, distclass=MaybePure)
