"""scripts/trim_image.py: what is not needed at run time goes, and the records follow."""

import csv
import shutil
import sys
from importlib.metadata import distribution

import pytest

from scripts import sbom, trim_image

KEPT = (
    "routing_service/texts/es.ftl",
    "babel/locale-data/root.dat",
    "babel/locale-data/es.dat",
    "babel/locale-data/es_MX.dat",
    "botocore/data/endpoints.json",
    "botocore/data/dynamodb/2012-08-10/service-2.json.gz",
    "botocore/data/sts/2011-06-15/service-2.json.gz",
    "numpy/linalg.py",
)
GONE = (
    "babel/locale-data/fi.dat",
    "botocore/data/ec2/2016-11-15/service-2.json.gz",
    "numpy/f2py/crackfortran.py",
    "numpy/tests/test_linalg.py",
    "numpy/include/array.h",
    "numpy/linalg.pyi",
    "shop-1.0.dist-info/direct_url.json",
)
LIBRARY = "shop/_multidict.so"


@pytest.fixture
def environment(tmp_path):
    """An environment with one distribution, which has a real library that is not stripped."""
    if shutil.which("strip") is None:
        pytest.skip("strip is not installed (binutils)")
    folder = tmp_path / "env"
    installed = folder / "lib/python3.11/site-packages"
    for name in (*KEPT, *GONE):
        path = installed / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    real = next(path for path in distribution("multidict").files if path.suffix == ".so")
    (installed / LIBRARY).parent.mkdir()
    shutil.copy(real.locate(), installed / LIBRARY)
    information = installed / "shop-1.0.dist-info"
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    with (information / "RECORD").open("w") as file:
        rows = [[name, "sha256=old", "1"] for name in (*KEPT, *GONE, LIBRARY)]
        csv.writer(file).writerows([*rows, ["shop-1.0.dist-info/RECORD", "", ""]])
    return folder


def test_only_what_the_service_reads_stays(environment, monkeypatch, capsys):
    """And what became smaller is printed."""
    installed = environment / "lib/python3.11/site-packages"
    before = (installed / LIBRARY).stat().st_size
    monkeypatch.setattr(sys, "argv", ["trim_image.py", str(environment)])
    trim_image.main()
    assert all((installed / name).exists() for name in KEPT)
    assert not any((installed / name).exists() for name in GONE)
    after = (installed / LIBRARY).stat().st_size
    assert after < before
    assert capsys.readouterr().out.splitlines()[-1].startswith("all packages")
    (shop,) = sbom.installed(installed).values()
    records = {str(path): path for path in shop.files}
    assert records.keys() == {*KEPT, LIBRARY, "shop-1.0.dist-info/RECORD"}
    assert records[LIBRARY].size == after
    assert records[LIBRARY].hash.value != "old"
