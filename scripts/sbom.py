"""The bills of materials of a release: CycloneDX 1.6, of the image and of the wheels.

Each is checked against CycloneDX's own schema as it is written and as it is verified.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SERVICE: Final = "agent-routing-service"
SUFFIX: Final = ".cdx.json"
FILE_PROPERTY: Final = "agent-routing:file"
"""The file of a component, below the folder of the release."""

_LICENCE_CHARACTERS_MAX: Final = 100
"""A longer licence field is the licence's text."""


class SbomError(Exception):
    """What is wrong with a bill of materials."""


def of_wheels(wheels: Iterable[Path], version: str, built_at: int) -> Bom:
    """Return the wheels with their hashes, and all that they need at the versions of the tests."""
    named = {canonicalize_name(path.name.split("-")[0]): path for path in wheels}
    found = installed(None)
    needed = dependencies(found, roots(found), {})
    components = {name: python_component(found[name]) for name in needed}
    for name, path in named.items():
        components[name].hashes.add(sha256(path))
        components[name].properties.add(Property(name=FILE_PROPERTY, value=path.name))
    product = Component(
        type=ComponentType.APPLICATION, name="agent-routing", version=version, bom_ref="release"
    )
    bom = bom_of(product, components.values(), built_at)
    register(bom, product, components, needed, named)
    return bom


def of_image(root: Path, archive: Path, digest: str, version: str, built_at: int) -> Bom:
    """Return the Debian and Python packages in an image. digest: that of its manifest."""
    (packages,) = root.glob("opt/agent-routing/lib/python3*/site-packages")
    found = installed(packages)
    environment = {
        "python_version": packages.parent.name.removeprefix("python"),
        "python_full_version": python_of(root / "opt/agent-routing"),
    }
    needed = dependencies(found, roots(found), environment)
    components = {name: python_component(each) for name, each in found.items()}
    product = Component(
        type=ComponentType.CONTAINER,
        name="agent-routing",
        version=version,
        purl=PackageURL("oci", None, "agent-routing", digest),
        hashes=[sha256(archive)],
        properties=[Property(name=FILE_PROPERTY, value=f"image/{archive.name}")],
        bom_ref="image",
    )
    debian = list(debian_components(root))
    bom = bom_of(product, [*components.values(), *debian], built_at)
    register(bom, product, components, needed, [SERVICE])
    bom.register_dependency(product, debian)
    return bom


def installed(folder: Path | None) -> dict[str, Distribution]:
    """Return the distributions of a site-packages folder, or of this Python."""
    found = distributions() if folder is None else distributions(path=[str(folder)])
    return {canonicalize_name(each.metadata["Name"]): each for each in found}


def python_of(environment: Path) -> str:
    """Return the version of Python with which a virtual environment was made."""
    for line in (environment / "pyvenv.cfg").read_text("utf-8").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "version":
            return value.strip()
    raise SbomError(f"{environment}/pyvenv.cfg names no version of Python")


def roots(found: Mapping[str, Distribution]) -> dict[str, frozenset[str]]:
    """Return the service with all its extras."""
    extras = found[SERVICE].metadata.get_all("Provides-Extra") or []
    return {SERVICE: frozenset(extras)}


def dependencies(
    found: Mapping[str, Distribution],
    start: Mapping[str, frozenset[str]],
    environment: Mapping[str, str],
) -> dict[str, set[str]]:
    """Return what each distribution needs, from some on. Raises SbomError if one is missing."""
    edges: dict[str, set[str]] = {}
    waiting = [(name, extra) for name, extras in start.items() for extra in {"", *extras}]
    done = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        needed = edges.setdefault(name, set())
        for requirement in map(Requirement, found[name].requires or []):
            marker = requirement.marker
            if marker and not marker.evaluate({**environment, "extra": extra}):
                continue
            other = canonicalize_name(requirement.name)
            if other not in found:
                raise SbomError(f"{name} needs {requirement}, which is not installed")
            needed.add(other)
            waiting += [(other, each) for each in {"", *requirement.extras}]
    return edges


def python_component(found: Distribution) -> Component:
    """Return a distribution, with the libraries that its wheel says it contains (PEP 770)."""
    name, version = canonicalize_name(found.metadata["Name"]), found.version
    reference = f"pkg:pypi/{name}@{version}"
    made = Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=PackageURL.from_string(reference),
        bom_ref=reference,
    )
    licence = licence_of(found)
    if licence:
        made.licenses.add(LicenseFactory().make_from_string(licence))
    for inner in contained(found):
        address = inner.get("purl")
        made.components.add(
            Component(
                type=ComponentType.LIBRARY,
                name=inner["name"],
                version=inner.get("version"),
                purl=PackageURL.from_string(address) if address else None,
                bom_ref=f"{reference}/{inner['name']}@{inner.get('version', '')}",
            )
        )
    return made


def contained(found: Distribution) -> Iterator[dict[str, Any]]:
    """Yield what the bills of materials within a wheel list, each once."""
    seen = {canonicalize_name(found.metadata["Name"])}
    for path in found.files or []:
        if path.parent.name == "sboms" and path.suffix == ".json":
            listed = json.loads(path.read_text("utf-8")).get("components", [])
            for each in listed:
                key = f"{each['name']}@{each.get('version')}"
                if key not in seen and canonicalize_name(each["name"]) not in seen:
                    seen.add(key)
                    yield each


def licence_of(found: Distribution) -> str | None:
    """Return a licence as an expression, else as the name that the package gives."""
    data = found.metadata
    given = data.get("License-Expression") or data.get("License")
    if given and "\n" not in given and len(given) < _LICENCE_CHARACTERS_MAX:
        return str(given)
    prefix = "License :: OSI Approved :: "
    classifiers = data.get_all("Classifier") or []
    return next((each.removeprefix(prefix) for each in classifiers if prefix in each), None)


def debian_components(root: Path) -> Iterator[Component]:
    """Yield the packages that dpkg has installed."""
    release = dict(
        line.split("=", 1)
        for line in (root / "etc/os-release").read_text("utf-8").splitlines()
        if "=" in line
    )
    distro = f"debian-{release['VERSION_ID'].strip(chr(34))}"
    for paragraph in (root / "var/lib/dpkg/status").read_text("utf-8").split("\n\n"):
        package = HeaderParser().parsestr(paragraph.strip())
        if package["Status"] != "install ok installed":
            continue
        address = PackageURL(
            "deb",
            "debian",
            package["Package"],
            package["Version"],
            {"arch": package["Architecture"], "distro": distro},
        )
        yield Component(
            type=ComponentType.LIBRARY,
            name=package["Package"],
            version=package["Version"],
            purl=address,
            bom_ref=address.to_string(),
        )


def bom_of(product: Component, components: Iterable[Component], built_at: int) -> Bom:
    """Return a bill of materials that is the same whenever it is made of the same."""
    bom = Bom(components=components)
    bom.metadata.component = product
    bom.metadata.timestamp = datetime.fromtimestamp(built_at, UTC)
    listed = sorted(str(each.bom_ref) for each in bom.components)
    seed = "\n".join([str(product.purl or product.version), *listed])
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, seed)
    return bom


def register(
    bom: Bom,
    product: Component,
    components: Mapping[str, Component],
    needed: Mapping[str, set[str]],
    direct: Iterable[str],
) -> None:
    """Write down which component needs which."""
    bom.register_dependency(product, [components[name] for name in direct])
    for name, others in needed.items():
        bom.register_dependency(components[name], [components[each] for each in sorted(others)])


def write(bom: Bom, path: Path) -> Path:
    """Write a bill of materials. Raises SbomError if it does not fit the schema."""
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n", "utf-8")
    check_schema(path)
    return path


def check_schema(path: Path) -> None:
    """Raise SbomError if a file does not fit CycloneDX's schema, strictly."""
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text("utf-8"))
    if problem is not None:
        raise SbomError(f"{path.name} is not CycloneDX 1.6: {problem}")


def check_files(path: Path, folder: Path) -> int:
    """Raise SbomError unless the files that a bill of materials names have its hashes.

    Returns how many it names.
    """
    check_schema(path)
    bom = json.loads(path.read_text("utf-8"))
    named = 0
    for each in [bom["metadata"]["component"], *bom.get("components", [])]:
        for given in each.get("properties", []):
            if given["name"] != FILE_PROPERTY:
                continue
            named += 1
            hashes = {entry["content"] for entry in each.get("hashes", [])}
            try:
                content = (folder / given["value"]).read_bytes()
            except OSError as error:
                raise SbomError(f"{path.name} names {given['value']}: missing") from error
            if hashlib.sha256(content).hexdigest() not in hashes:
                raise SbomError(f"{path.name} has another hash of {given['value']}")
    if not named:
        raise SbomError(f"{path.name} names no file of the release")
    return named


def sha256(path: Path) -> HashType:
    """Return a file's hash."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)
