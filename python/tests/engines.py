# SPDX-License-Identifier: Apache-2.0
"""The classes of vLLM and SGLang that call deep_ep, as published, in an environment that has neither engine: engine_ranks.py drives them.

    python3 python/tests/engines.py FOLDER          # build/engines: fetches the wheels with pip, unpacks the files of OWN, drops the rest

load(FOLDER, ...) lets them be imported; torch, numpy and regex are needed. The modules in OWN are executed as they are in the wheels. What
they import beside, of an engine, is a stand-in: of_vllm() and of_sglang() say which modules have something that does something; those in
EMPTY have names alone, for annotations and for code that is not reached. Whatever else is called of a stand-in raises, and a module that
is in none of these lists cannot be imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import tempfile
import types
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional

VERSIONS = {"vllm": "0.24.0", "sglang": "0.5.23"}
"""vLLM's newest that wants torch 2.11."""

MOE = "vllm.model_executor.layers.fused_moe"
QUANTIZATION = "vllm.model_executor.layers.quantization.utils"
DISPATCHER = "sglang.srt.layers.moe.token_dispatcher"
OWN = {
    "vllm": [
        f"{MOE}.prepare_finalize.deepep_ht",
        f"{MOE}.prepare_finalize.deepep_ll",
        f"{MOE}.modular_kernel",
        f"{MOE}.all2all_utils",
        f"{MOE}.config",
        f"{MOE}.utils",
        f"{MOE}.activation",
        f"{MOE}.topk_weight_and_reduce",
        f"{MOE}.runner.shared_experts",
        "vllm.distributed.device_communicators.all2all",
        "vllm.distributed.device_communicators.base_device_communicator",
        f"{QUANTIZATION}.quant_utils",
        f"{QUANTIZATION}.ocp_mx_utils",
        "vllm.v1.worker.ubatching",
        "vllm.v1.worker.workspace",
        "vllm.scalar_type",
        "vllm.triton_utils",
        "vllm.triton_utils.importing",
        "vllm.utils",
        "vllm.utils.import_utils",
        "vllm.utils.math_utils",
        "vllm.envs",
        "vllm.logger",
        "vllm.logging_utils",
        *(f"vllm.logging_utils.{name}" for name in ("access_log_filter", "formatter", "lazy", "log_time", "torch_tensor")),
    ],
    "sglang": [
        f"{DISPATCHER}.deepep",
        f"{DISPATCHER}.base",
        "sglang.srt.layers.moe.utils",
        "sglang.srt.environ",
    ],
}
EMPTY = [
    f"{MOE}.prepare_finalize",
    f"{MOE}.prepare_finalize.flashinfer_nvlink_one_sided",
    f"{MOE}.prepare_finalize.flashinfer_nvlink_two_sided",
    *(f"{QUANTIZATION}.{name}" for name in ("int8_utils", "mxfp4_utils", "mxfp6_utils", "mxfp8_utils", "nvfp4_emulation_utils", "w8a8_utils")),
    "vllm.config",
    "vllm.config.kernel",
    "vllm.distributed.utils",
    "vllm.forward_context",
    "vllm.third_party",
    "vllm.utils.torch_utils",
    "sglang.srt.configs.shared_experts",
    "sglang.srt.layers.moe.topk",
    "sglang.srt.utils.common",
]


class Setting:
    """What an engine would know of itself; the driver changes it as it goes."""

    def __init__(self, rank: int, nr_ranks: int, quantised: Callable[..., Any]):
        self.rank, self.nr_ranks, self.quantised = rank, nr_ranks, quantised
        self.manager: Any = None
        """vLLM's All2AllManager."""
        self.prefill = True
        """SGLang's batch, which chooses the mode of DeepEPMode.AUTO."""


def of_vllm(setting: Setting) -> Dict[str, Dict[str, Any]]:
    import torch

    def moe_sum(rows: Any, out: Any) -> None:
        out.copy_(rows.float().sum(1))

    def flag(value: bool) -> Callable[..., bool]:
        return lambda *given: value

    # tensor parallelism of one, data parallelism of all
    alone = SimpleNamespace(rank_in_group=0, world_size=1)
    everyone = SimpleNamespace(rank_in_group=setting.rank, world_size=setting.nr_ranks)
    with_manager = SimpleNamespace(rank_in_group=setting.rank, device_communicator=SimpleNamespace(all2all_manager=None))

    def get_ep_group() -> Any:
        with_manager.device_communicator.all2all_manager = setting.manager
        return with_manager

    groups = dict(get_dp_group=lambda: everyone, get_tp_group=lambda: alone, get_ep_group=get_ep_group)
    platform = SimpleNamespace(
        is_cuda=flag(True),
        is_cuda_alike=flag(True),
        is_rocm=flag(False),
        is_xpu=flag(False),
        fp8_dtype=lambda: torch.float8_e4m3fn,
        simple_compile_backend="inductor",
    )
    return {
        "vllm.platforms": dict(current_platform=platform),
        "vllm.distributed": groups,
        "vllm.distributed.parallel_state": dict(
            groups,
            in_the_same_node_as=lambda group, source_rank: [True] * setting.nr_ranks,
            is_local_first_rank=lambda: setting.rank == 0,
            is_global_first_rank=lambda: setting.rank == 0,
        ),
        "vllm.utils.flashinfer": dict(has_flashinfer_nvlink_one_sided=flag(False), has_flashinfer_nvlink_two_sided=flag(False)),
        "vllm._aiter_ops": dict(rocm_aiter_ops=SimpleNamespace(is_fused_moe_enabled=flag(False), is_fusion_moe_shared_experts_enabled=flag(False))),
        "vllm._custom_ops": dict(moe_sum=moe_sum),
        f"{QUANTIZATION}.fp8_utils": dict(per_token_group_quant_fp8=lambda x, block: setting.quantised(x)),
    }


def of_sglang(setting: Setting) -> Dict[str, Dict[str, Any]]:
    import torch

    resources = SimpleNamespace(buffers={})
    flags = SimpleNamespace(moe=SimpleNamespace(deepep_config="", tbo_enabled=False))
    recorder = SimpleNamespace(on_deepep_dispatch_normal=lambda *given, **named: None, on_deepep_dispatch_low_latency=lambda *given: None)

    def quantised(x: Any, block: int, column_major_scales: bool, scale_tma_aligned: bool, scale_ue8m0: bool) -> Any:
        """Scales as the kernel leaves them: rows of floats, or columns of four powers of two in an int32 each."""
        if not scale_ue8m0:
            return setting.quantised(x)
        rows, packed = setting.quantised(x, True)
        columns = packed.new_empty((packed.shape[1], -(-len(x) // 4) * 4))[:, : len(x)]
        columns.copy_(packed.T)
        return rows, columns.T

    def no() -> bool:
        return False

    return {
        "sglang.srt.runtime_context": dict(get_resources=lambda: resources, get_flags=lambda: flags, get_server_args=lambda: None),
        "sglang.srt.eplb.expert_distribution": dict(get_global_expert_distribution_recorder=lambda: recorder),
        "sglang.srt.layers.deep_gemm_wrapper": dict(ENABLE_JIT_DEEPGEMM=True, DEEPGEMM_BLACKWELL=False, DEEPGEMM_SCALE_UE8M0=False),
        "sglang.srt.layers.dp_attention": dict(get_is_extend_in_batch=lambda: setting.prefill),
        "sglang.kernels.ops.quantization.fp8_kernel": dict(sglang_per_token_group_quant_fp8=quantised),
        "sglang.srt.utils": dict(
            get_bool_env_var=lambda name: False,
            get_cuda_version=lambda: tuple(int(part) for part in (torch.version.cuda or "0.0").split(".")),
            is_blackwell=no,
            is_cuda=lambda: True,
            is_flashinfer_available=no,
            is_hip=no,
            is_npu=no,
        ),
    }


class Name(type):
    """What a stand-in has where nothing is given: good for annotations, base classes, and names in names."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{cls.__name__}.{name}", (), {})

    def __call__(cls, *given: Any, **named: Any) -> Any:
        raise NotImplementedError(f"{cls.__name__} is a stand-in")


class StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = Name(f"{self.__name__}.{name}", (), {})
        setattr(self, name, found)
        return found


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """All modules of both engines: own ones, stand-ins, and packages with nothing in them."""

    def __init__(self, folder: Path, given: Dict[str, Dict[str, Any]]):
        self.folder, self.given = folder, given
        self.stand_ins = {*given, *EMPTY}
        own = [name for names in OWN.values() for name in names]
        self.packages = {name.rsplit(".", n)[0] for name in (*self.stand_ins, *own) for n in range(1, name.count(".") + 1)}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        package = name.split(".")[0]
        if package not in OWN:
            return None
        place = self.folder / name.replace(".", "/")
        if name in OWN[package]:
            inside = place / "__init__.py"
            if inside.exists():
                return importlib.util.spec_from_file_location(name, inside, submodule_search_locations=[str(place)])
            return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))
        if name not in self.stand_ins | self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        return StandIn(spec.name) if spec.name in self.stand_ins else None

    def exec_module(self, module: Any) -> None:
        vars(module).update(self.given.get(module.__name__, {}))


def load(folder: Path, setting: Setting) -> None:
    """From here on both engines are those of the folder."""
    sys.meta_path.insert(0, Finder(folder, {**of_vllm(setting), **of_sglang(setting)}))


# ---- fetching ------------------------------------------------------------------------------------------------------


def file_of(module: str, names: Any) -> Optional[str]:
    path = module.replace(".", "/")
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in names), None)


def is_there(folder: Path) -> bool:
    return all((folder / f"{module.replace('.', '/')}.py").exists() or (folder / module.replace(".", "/") / "__init__.py").exists() for names in OWN.values() for module in names)


def fetch(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
    from deep_ep_calls import fetched

    for package, version in VERSIONS.items():
        with tempfile.TemporaryDirectory() as room, zipfile.ZipFile(fetched(package, version, room)) as wheel:
            names = set(wheel.namelist())
            for module in OWN[package]:
                file = file_of(module, names)
                if file is None:
                    raise SystemExit(f"{package} {version} has no {module}")
                wheel.extract(file, folder)


if __name__ == "__main__":
    if not is_there(Path(sys.argv[1])):
        fetch(Path(sys.argv[1]))
