"""CUDA kernels are compiled by what is there, kept, loaded, and launched as was meant."""

from __future__ import annotations

import ctypes
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from paged_backends.kernels.build import CannotCompile, library
from paged_backends.kernels.cuda import toolkit
from paged_backends.kernels.cuda.driver import Context, Driver, GpuModule
from paged_backends.kernels.cuda.kernel import (
    COPY_BLOCKS,
    Argument,
    BlockCopies,
    KernelError,
    Variant,
    divider,
)
from paged_backends.kernels.cuda.toolkit import Nvcc, Nvrtc, find_compilers, load_variant
from unit.cuda_fakes import FakeDriver, fake_library, fake_module, image
from unit.test_cpu_build import script

pytestmark = pytest.mark.heavy


VARIANT = Variant("bfloat16", 128, 16, "auto")
COPY = f"paged_copy_blocks 256 0 0 {ctypes.sizeof(BlockCopies)}"


def fake_nvcc(folder: Path, text: str = "echo 'release 1'") -> Path:
    """An nvcc that writes its arguments to the file after ``-o``."""
    folder.mkdir(parents=True, exist_ok=True)
    return script(
        folder,
        "nvcc",
        f'[ "$1" = --version ] && {{ echo "nvcc: NVIDIA"; {text}; exit; }}\n'
        'all="$*"\nwhile [ "$1" != -o ]; do shift; done\necho "$all" > "$2"',
    )


def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "_package_folders", lambda: iter(()))


# ---------------------------------------------------------------------- nvcc


@pytest.fixture
def toolkits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A machine without CUDA but for what is put into these folders: an empty one."""
    no_packages(monkeypatch)
    folders = [tmp_path]
    monkeypatch.setattr(toolkit, "toolkit_folders", lambda environ: iter(folders))
    return folders


def test_which_compilers_are_found(toolkits: list[Path], tmp_path: Path) -> None:
    found = find_compilers({})
    assert isinstance(found, CannotCompile)
    for part in ("no nvcc", "no NVRTC", "pip install nvidia-cuda-nvrtc", "CUDA_HOME"):
        assert part in str(found)
    broken = fake_nvcc(tmp_path / "broken", "exit 1")
    with pytest.raises(CannotCompile, match="no nvcc in CUDA_HOME"):
        Nvcc.find({"PATH": str(broken.parent)})
    other = fake_nvcc(tmp_path / "other")
    assert Nvcc.find({"PATH": f"{other.parent}:/usr/bin:/bin"}) == Nvcc(str(other), "release 1")
    toolkits[:] = [fake_toolkit(tmp_path / "bare", headers=False)]
    with pytest.raises(CannotCompile, match=r"cuda_bf16\.h beside it"):
        Nvrtc.find({})
    toolkits[:] = [fake_toolkit(tmp_path / "home"), tmp_path]
    mine = fake_nvcc(tmp_path / "home" / "bin")
    both = find_compilers({"PATH": f"{other.parent}:/usr/bin:/bin"})
    assert not isinstance(both, CannotCompile)
    assert [type(one) for one in both] == [Nvcc, Nvrtc]
    assert both[0].path == str(mine), "that of CUDA_HOME comes first"


def test_each_architecture_and_variant_is_compiled_as_it_says(tmp_path: Path) -> None:
    compiler = Nvcc(str(fake_nvcc(tmp_path / "bin")), "1")
    variants = [
        *(Variant("float32", 128, group, "auto") for group in (2, 4)),
        Variant("bfloat16", 64, 16, "fp8_e4m3"),
    ]
    builds = {}
    for one in variants:
        for architecture in ("sm_80", "sm_90"):
            for build, unit in zip(one.cubins(architecture), ("decode", "others"), strict=True):
                builds[build] = made = library(build, compiler, tmp_path)
                said = made.read_text()
                for argument in (
                    *("-cubin", "-O3", f"--gpu-architecture={architecture}", f"{unit}.cu"),
                    *(f"-DPAGED_DTYPE={one.dtype}", f"-DPAGED_DIM={one.dim}"),
                    *(f"-DPAGED_CACHE={one.cache}", f"-I{build.includes[0]}"),
                ):
                    assert argument in said
                grouped = f"-DPAGED_GROUP={one.group}" in said
                assert grouped == (unit == "decode"), "others serve every group"
    assert len(builds) == 2 * (3 + 2), "others serve two groups of float32"
    newer = library(variants[0].cubins("sm_90")[0], Nvcc(compiler.path, "2"), tmp_path)
    assert len({newer, *builds.values()}) == len(builds) + 1


def test_what_a_compiler_says_is_told(tmp_path: Path) -> None:
    failing = script(tmp_path, "nvcc", "echo 'call.h(3): error: no such thing' >&2; exit 2")
    damaged = tmp_path / "libnvrtc.so"
    damaged.write_bytes(b"\x7fELF")
    source, nvrtc = tmp_path / "a.cu", Nvrtc(fake_library("libnvrtc"), ())
    for compiler, code, said in (
        (Nvcc(str(failing), "1"), "code", "no such thing"),
        (Nvcc(str(tmp_path / "gone"), "1"), "code", "CUDA_HOME"),
        (Nvrtc(damaged, ()), "code", "cannot be loaded"),
        (nvrtc, "REFUSED", r"a\.cu\(1\): error: REFUSED is undefined"),
        (nvrtc, "", "CUBINSize failed: NVRTC_ERROR_INVALID_INPUT"),
    ):
        source.write_text(code)
        with pytest.raises(CannotCompile, match=said):
            compiler.build([source], [], tmp_path / "a.cubin")


# ---------------------------------------------------------------------- NVRTC


def fake_toolkit(folder: Path, *, headers: bool = True) -> Path:
    """A folder of a CUDA toolkit with the fake NVRTC."""
    (folder / "lib64").mkdir(parents=True)
    (folder / "lib64" / "libnvrtc.so.12").symlink_to(fake_library("libnvrtc"))
    (folder / "include" / "nv").mkdir(parents=True)
    if headers:
        (folder / "include" / "cuda_bf16.h").touch()
    return folder


def test_nvrtc_compiles_with_the_headers_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_packages(monkeypatch)
    home = fake_toolkit(tmp_path / "home")
    found = Nvrtc.find({"CUDA_HOME": str(home)})
    assert found.headers == (home / "include",)
    said = library(VARIANT.cubins("sm_90")[0], found, tmp_path).read_text()
    for argument in ("--gpu-architecture=sm_90", "-DPAGED_GROUP=16", f"-I{home / 'include'}"):
        assert f"{argument}\n" in said
    assert "-O3" not in said, "NVRTC refuses what only nvcc knows"


def test_headers_may_be_in_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA 12's wheels have a folder for each part."""
    packages = tmp_path / "nvidia"
    fake_toolkit(packages / "cuda_nvrtc", headers=False)
    for part, header in (("cuda_runtime", "cuda_bf16.h"), ("cuda_cccl", "nv/target")):
        (packages / part / "include" / "nv").mkdir(parents=True)
        (packages / part / "include" / header).touch()
    (tmp_path / "nvidia" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    found = Nvrtc.find({})
    assert found.path.parent.parent.name == "cuda_nvrtc"
    assert [folder.parent.name for folder in found.headers] == ["cuda_runtime", "cuda_cccl"]


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_builtins_beside_nvrtc_are_loaded(tmp_path: Path) -> None:
    """NVRTC finds them by name alone, and nothing says where they are."""
    home = tmp_path / "lib"
    home.mkdir()
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0"):
        shutil.copy(fake_library("libnvrtc"), home / name)
    source = tmp_path / "a.cu"
    source.write_text("code")
    Nvrtc(home / "libnvrtc.so.13", ()).build([source], [], tmp_path / "a.cubin")
    mapped = Path("/proc/self/maps").read_text()
    assert str(home / "libnvrtc-builtins.so.13.0") in mapped
    assert "libnvrtc-builtins.alt" not in mapped


@pytest.mark.long
@pytest.mark.parametrize("kind", [Nvcc, Nvrtc])
@pytest.mark.parametrize(
    "variant",
    [VARIANT, Variant("float32", 64, 1, "auto"), Variant("float16", 256, 16, "fp8_e4m3")],
)
def test_what_is_installed_compiles_the_kernels(
    tmp_path: Path, kind: type[Nvcc | Nvrtc], variant: Variant
) -> None:
    try:
        compiler = kind.find()
    except CannotCompile as error:
        pytest.skip(str(error))
    for architecture in ("sm_80", "sm_90"):
        builds = variant.cubins(architecture)
        parts = [library(build, compiler, tmp_path).read_bytes() for build in builds]
        assert all(code.startswith(b"\x7fELF") for code in parts)
        code = b"".join(parts)
        names = (variant.write, variant.decode, variant.combine, variant.tiles, COPY_BLOCKS)
        for name in filter(None, names):
            assert f"{name}_geometry".encode() in code


class Writing:
    """A compiler whose code is given; ``None``: it fails."""

    def __init__(self, code: bytes | None) -> None:
        self.code = code
        self.identity = ("writing", repr(code))

    def build(self, sources: object, flags: object, target: Path, /) -> None:
        if self.code is None:
            raise CannotCompile("sm_90 is not supported")
        target.write_bytes(self.code)


def test_the_next_compiler_makes_what_the_driver_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path))
    context = Context(FakeDriver(), 0)
    compilers = [Writing(None), Writing(b"too new"), Writing(image(COPY))]
    with capture_logs() as logs:
        module = load_variant(VARIANT, context, "sm_90", compilers)
    assert module.kernel("paged_copy_blocks", 40).geometry.threads == 256
    reasons = [log["reason"] for log in logs if log["event"] == "cuda_compiler_passed_over"]
    assert reasons[0] == "sm_90 is not supported"
    assert "cuModuleLoadData returned CUDA_ERROR_INVALID_IMAGE" in reasons[1]
    with pytest.raises(CannotCompile, match=r"not supported; .*INVALID_IMAGE"):
        load_variant(VARIANT, context, "sm_90", compilers[:2])


def test_the_kernel_that_decodes_and_the_others_are_compiled_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path))
    both = threading.Barrier(2, timeout=60)

    class Meeting(Writing):
        def build(self, sources: Sequence[Path], flags: object, target: Path, /) -> None:
            both.wait()
            kernel = COPY if sources[0].stem == "others" else f"{VARIANT.decode} 128 0 16 40"
            target.write_bytes(image(kernel))

    module = load_variant(VARIANT, Context(FakeDriver(), 0), "sm_90", [Meeting(None)])
    assert module.kernel(COPY_BLOCKS, 40).geometry.threads == 256
    assert module.kernel(VARIANT.decode, 40).geometry.threads == 128


def test_without_a_compiler_code_in_the_cache_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path))
    context, none = Context(FakeDriver(), 0), CannotCompile("there is none")
    with pytest.raises(CannotCompile, match="there is none"):
        load_variant(VARIANT, context, "sm_90", none)
    load_variant(VARIANT, context, "sm_90", [Writing(image(COPY))])
    assert load_variant(VARIANT, context, "sm_90", none).kernel("paged_copy_blocks", 40)


# ---------------------------------------------------------------------- the driver


def test_kernels_run_in_the_current_stream_of_their_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = {0: 40, 1: 41}
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", streams.get, raising=False)
    for device, stream in streams.items():
        module = GpuModule(Context(FakeDriver(), device), [image(COPY)], "kernels")
        assert module.stream() == stream


def test_a_launch_reaches_the_driver_as_it_was_meant() -> None:
    driver = FakeDriver()
    module = fake_module(driver, "one 128 1024 4 40", "two 64 102400 0 40", device=1)
    copies = BlockCopies(sources=1, targets=2, block_bytes=3, pairs=4, num_caches=5, num_pairs=6)
    argument = Argument(copies)
    module.kernel("one", 40).launch((3, 2, 1), argument, 11)
    copies.num_pairs = 9  # the first launch has read it already
    module.kernel("two", 40).launch((70_000, 1, 5), argument, 0)
    first, second = driver.launches()
    assert (first.kernel, first.device, first.grid, first.stream) == ("one", 1, (3, 2, 1), 11)
    assert (first.threads, first.shared_bytes) == (128, 1024)
    assert BlockCopies.from_buffer_copy(first.argument).num_pairs == 6
    assert (second.kernel, second.grid, second.shared_bytes) == ("two", (70_000, 1, 5), 102_400)
    assert bytes(copies) == second.argument
    assert driver.depth() == 0, "the thread's context is as it was"


def test_a_launch_works_in_any_thread_and_beside_another_device() -> None:
    driver = FakeDriver()
    modules = [fake_module(driver, COPY, device=device) for device in (0, 1)]
    argument = Argument(BlockCopies())
    contexts = [Context(driver, device) for device in (0, 1)]

    def launch() -> None:
        assert contexts[0].enter()
        assert not contexts[0].enter(), "it is current already"
        for module in modules:
            module.kernel("paged_copy_blocks", 40).launch((1, 1, 1), argument, 0)
        contexts[0].leave()

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert [launch.device for launch in driver.launches()] == [0, 1]


def test_errors_of_the_driver_name_the_kernel_and_what_was_wrong(tmp_path: Path) -> None:
    driver = FakeDriver()
    module = fake_module(driver, "tall 64 0 0 40", "greedy 64 300000 0 40")
    with pytest.raises(
        KernelError, match=r"kernel tall, grid \(1, 70000, 1\).*INVALID_VALUE: invalid argument"
    ):
        module.kernel("tall", 40).launch((1, 70_000, 1), Argument(BlockCopies()), 0)
    with pytest.raises(KernelError, match="kernel greedy of fake code: cuFuncSetAttribute"):
        module.kernel("greedy", 40)
    with pytest.raises(KernelError, match=r"kernel none of fake code.*named symbol not found"):
        module.kernel("none", 40)
    with pytest.raises(KernelError, match="takes a structure of 40 bytes, and this one has 48"):
        fake_module(driver, "tall 64 0 0 40").kernel("tall", 48)
    with pytest.raises(KernelError, match=r"device 2: cuDeviceGet.*INVALID_DEVICE"):
        Context(driver, 2)
    assert str(driver.error(77, "cuAny")) == "cuAny returned error 77"
    with pytest.raises(KernelError, match="driver cannot be loaded"):
        Driver(tmp_path / "libcuda.so.1")
    with pytest.raises(KernelError, match=r"driver cannot be loaded.*cuInit"):
        Driver(fake_library("libnvrtc"))


# ---------------------------------------------------------------------- what is asked for


def test_the_divider_divides() -> None:
    for divisor in (1, 2, 3, 5, 7, 16, 48, 100, 255, 256):
        factor, shift = divider(divisor)
        assert 0 < factor < 1 << 32
        for number in (*range(3000), 2**31 - 1, 2**31 - divisor):
            high = number * factor >> 32
            assert (high + number) >> shift == number // divisor
