"""Containers of an image: by runc, restricted as deploy/compose.yaml says, or in buildah's chroot.

Both use the host's network, so that a test reaches the server on 127.0.0.1.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

USER = 10001


class Chroot:
    """What is left where the kernel refuses runc: the image's files, user and variables."""

    def __init__(self, buildah, container):
        self._command = buildah.command("run", container, "--")
        self.environment = buildah.environment | {"BUILDAH_ISOLATION": "chroot"}

    def command(self, *words):
        """Return the command that runs one of the image's programs."""
        return [*self._command, *words]

    def say(self, *words):
        """Run a program and return what it prints."""
        return output(self.command(*words), self.environment)

    inside = say

    def stop(self, process):
        """Send SIGTERM to the server below buildah, which hands no signal on."""
        below = [process.pid]
        for pid in below:
            if Path(f"/proc/{pid}/exe").resolve().name.startswith("python"):
                os.kill(pid, signal.SIGTERM)
                return
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                below += map(int, children.read_text("utf-8").split())
        raise AssertionError(f"no server among the processes {below}")


class Runc:
    """A container with a read-only root, no capabilities, no new privileges, and /data."""

    environment = os.environ

    def __init__(self, root, config, folder):
        """Take the files of an image, its configuration, and a folder for what containers need."""
        self._folder = folder
        subprocess.run(["runc", "spec", "--bundle", folder], check=True)
        spec = json.loads((folder / "config.json").read_text("utf-8"))
        uid, gid = map(int, config["User"].split(":"))
        spec["root"] = {"path": str(root), "readonly": True}
        spec["process"] |= {
            "terminal": False,
            "user": {"uid": uid, "gid": gid},
            "env": config["Env"],
            "cwd": config["WorkingDir"],
            "capabilities": {},
            "noNewPrivileges": True,
        }
        # The host's network and cgroups.
        kept = {"pid", "ipc", "uts", "mount"}
        spec["linux"]["namespaces"] = [
            each for each in spec["linux"]["namespaces"] if each["type"] in kept
        ]
        data = folder / "data"
        data.mkdir()
        os.chown(data, uid, gid)
        bind = {"destination": "/data", "type": "bind", "source": str(data)}
        spec["mounts"].append(bind | {"options": ["bind", "rw", "nosuid", "nodev"]})
        self._spec = spec
        self._name = "none"
        self._made = 0

    def command(self, *words):
        """Return the command that runs one of the image's programs in a new container."""
        self._made += 1
        self._name = f"image-test-{os.getpid()}-{self._made}"
        bundle = self._folder / self._name
        bundle.mkdir()
        self._spec["process"]["args"] = [*words]
        (bundle / "config.json").write_text(json.dumps(self._spec), "utf-8")
        return [*self._runc(), "run", "--bundle", str(bundle), self._name]

    def say(self, *words):
        """Run a program in a container of its own and return what it prints."""
        return output(self.command(*words), self.environment)

    def inside(self, *words):
        """Run a program in the container that serves and return what it prints."""
        return output([*self._runc(), "exec", self._name, *words], self.environment)

    def stop(self, _process):
        """Send SIGTERM to the container's first process, as its engine would."""
        subprocess.run([*self._runc(), "kill", self._name, "TERM"], check=True)

    def refusal(self):
        """Return why the kernel runs no containers here, or None."""
        done = subprocess.run(self.command("true"), capture_output=True, text=True, check=False)
        return done.stderr.strip() if done.returncode else None

    def _runc(self):
        return ["runc", "--root", str(self._folder / "state")]


def output(command, environment):
    """Run a command; return its output. Fails with what it wrote to stderr."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()
