#!/usr/bin/env python3
"""Build the image of deploy/Dockerfile without a registry and without Docker.

    .venv/bin/python scripts/image.py                     into dist/image
    .venv/bin/python scripts/image.py --output FOLDER     elsewhere

The bases come from Debian's packages (mmdebstrap), security updates included, and are used again
for a day. buildah then runs the Dockerfile: by runc, or in a chroot if the kernel refuses runc,
with the refusal printed. It makes an OCI archive, which podman, skopeo and Docker load, and its
CycloneDX SBOM.
Needs root or user namespaces; scripts/toolchains.sh image installs the programs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import sbom  # noqa: E402 - from a script, the root is not on the path
from scripts.client_packages import version  # noqa: E402 - as above
from tests import toolchains  # noqa: E402 - as above

SUITE: Final = "bookworm"
"""Debian 12: its Python is 3.11, with which scripts/requirements/constraints.txt was made."""

# grpcio and others are C++.
RUN_PACKAGES: Final = ("python3", "ca-certificates", "libstdc++6", "tzdata")
"""What the server needs of Debian, next to what every Debian has."""

BUILD_PACKAGES: Final = (*RUN_PACKAGES, "python3-venv", "binutils")
"""What the Dockerfile's build stage needs."""

LEFT_OUT: Final = ("man", "info", "locale", "doc", "doc-base", "lintian", "bash-completion")
"""Folders of /usr/share that no server reads. Licences stay."""

BASE_AGE_S_MAX: Final = 24 * 3600
"""Debian's security updates are a day late at most."""

MIB: Final = 1024 * 1024


class ImageError(Exception):
    """Why there is no image, with what to do."""


def main() -> int:
    """Build, and print the size of each part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "image", metavar="FOLDER")
    try:
        archive = build(parser.parse_args().output)
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failed:
        print(f"image: {' '.join(map(str, failed.cmd))} failed", file=sys.stderr)
        return 1
    print(f"{archive.stat().st_size / MIB:8.1f} MiB  {archive.name}, compressed")
    return 0


def build(output: Path) -> Path:
    """Build the image into a folder; return the archive."""
    problem = missing()
    if problem:
        raise ImageError(problem)
    output.mkdir(parents=True, exist_ok=True)
    archive = output / f"{name()}.oci.tar"
    archive.unlink(missing_ok=True)
    bases = {
        "BASE": base("run", RUN_PACKAGES),
        "BUILD_BASE": base("build", BUILD_PACKAGES),
    }
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        buildah = Buildah(Path(folder))
        for argument, path in bases.items():
            buildah.take(path, local(argument))
        with buildah.container(local("BASE")) as container:
            buildah.choose_isolation(container)
        tag = f"localhost/agent-routing:{version()}"
        words = [f"--build-arg={argument}={local(argument)}" for argument in bases]
        buildah.run(
            *("build", "--layers=false", "--network=host", "--tag", tag),
            # Where a company's proxy signs for the package index, the host knows its authority.
            *("--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"),
            *("--timestamp", built_at(), *words, "--file", "deploy/Dockerfile", "."),
        )
        with buildah.container(tag) as container:
            root = buildah.mounted(container)
            report(root)
            buildah.run("push", "--quiet", tag, f"oci-archive:{archive}:agent-routing:{version()}")
            digest = manifest_digest(archive)
            bom = sbom.of_image(root, archive, digest, version(), int(built_at()))
            sbom.write(bom, output / f"{name()}{sbom.SUFFIX}")
    return archive


def missing() -> str | None:
    """Return which program is missing, with what to do; None if all are there."""
    found = toolchains.find("image")
    if isinstance(found, toolchains.Missing):
        return f"{found}; scripts/toolchains.sh image installs it"
    return None


def name() -> str:
    """Return the name of the image's files: version, system and processor."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"agent-routing-{version()}-linux-{machine}"


def local(argument: str) -> str:
    """Return the tag of a base, for one argument of the Dockerfile."""
    return f"localhost/agent-routing-{argument.lower().replace('_', '-')}"


def built_at() -> str:
    """Return the time that all files have: the commit's, or SOURCE_DATE_EPOCH."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    words = ["git", "show", "--no-patch", "--format=%ct"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or str(int(time.time()))


def base(kind: str, packages: tuple[str, ...]) -> Path:
    """Return a root file system of Debian's packages, made again after a day."""
    recipe = json.dumps([SUITE, packages, LEFT_OUT])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    path = ROOT / "build" / "image" / f"{kind}-{digest}.tar"
    if path.exists() and time.time() - path.stat().st_mtime < BASE_AGE_S_MAX:
        print(f"using {path.relative_to(ROOT)}", flush=True)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"making {path.relative_to(ROOT)} of {SUITE}: {' '.join(packages)}", flush=True)
    options = [f"path-exclude=/usr/share/{folder}/*" for folder in LEFT_OUT]
    made = path.with_suffix(".part")
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=essential", "--format=tar"),
            # Otherwise usrmerge converts an empty tree, and brings all of Perl along (50 MB).
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            f"--include={','.join(packages)}",
            *(f"--dpkgopt={option}" for option in options),
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            *(SUITE, str(made)),
        ],
        check=True,
    )
    made.replace(path)
    return path


class Buildah:
    """buildah with a store of its own, which goes with its folder."""

    def __init__(self, folder: Path) -> None:
        self._options = ["--root", str(folder / "root"), "--runroot", str(folder / "run")]
        self.environment = os.environ | {"BUILDAH_ISOLATION": "oci", "BUILDAH_RUNTIME": "runc"}

    def choose_isolation(self, container: str) -> str | None:
        """Use a chroot if the kernel refuses runc; return the refusal, or None."""
        done = subprocess.run(
            self.command("run", "--network=host", container, "--", "true"),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.returncode:
            return None
        (refusal, *_) = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        print(f"runc is refused here, so the same steps run in a chroot: {refusal}", flush=True)
        self.environment["BUILDAH_ISOLATION"] = "chroot"
        return refusal

    def command(self, *words: str) -> list[str]:
        """Return a command of buildah, to be run in self.environment."""
        return ["buildah", *self._options, *words]

    def run(self, *words: str, quiet: bool = False) -> str:
        """Run a command of buildah in the checkout. Return its output if quiet, else print it."""
        done = subprocess.run(
            self.command(*words),
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE if quiet else None,
            text=True,
            check=True,
        )
        return (done.stdout or "").strip()

    def take(self, archive: Path, tag: str) -> None:
        """Make an image of a root file system."""
        container = self.run("from", "scratch", quiet=True)
        self.run("add", "--quiet", container, str(archive), "/")
        self.run("commit", "--quiet", "--rm", container, tag)

    @contextmanager
    def container(self, image: str) -> Iterator[str]:
        """Yield a container of an image."""
        made = self.run("from", image, quiet=True)
        yield made
        self.run("rm", made, quiet=True)

    def mounted(self, container: str) -> Path:
        """Return the folder in which a container's files are."""
        return Path(self.run("mount", container, quiet=True))


def report(root: Path) -> None:
    """Print the size of the system and of each large package."""
    (installed,) = root.glob("opt/agent-routing/lib/python3*/site-packages")
    parts = {"Debian and its Python": size(root) - size(root / "opt")}
    parts |= {f"  {part.name}": size(part) for part in installed.iterdir()}
    print(f"{size(root) / MIB:8.1f} MiB  the image's files", flush=True)
    print(f"{size(root / 'opt') / MIB:8.1f} MiB  /opt/agent-routing, bytecode included", flush=True)
    for part, total in sorted(parts.items(), key=lambda each: -each[1]):
        if total >= 4 * MIB:
            print(f"{total / MIB:8.1f} MiB  {part}", flush=True)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    paths = [path] if path.is_file() else path.rglob("*")
    return sum(each.lstat().st_size for each in paths if each.is_file() and not each.is_symlink())


def manifest_digest(archive: Path) -> str:
    """Return the digest of an archive's image, by which registries know it."""
    with tarfile.open(archive) as opened:
        index = opened.extractfile("index.json")
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
    return str(manifest["digest"])


if __name__ == "__main__":
    sys.exit(main())
