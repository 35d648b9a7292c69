"""From the configuration to the constructor arguments of the actors, which a restart replays."""

from dataclasses import dataclass
from pathlib import Path

from qwengyre.cluster.boxes import BoxSpec
from qwengyre.cluster.cell import CellSpec
from qwengyre.cluster.gateways import GatewaySpec
from qwengyre.cluster.prepare import Prepared, harness_of, lora_of
from qwengyre.config import Config
from qwengyre.types import Sampling


@dataclass(frozen=True)
class Specs:
    """One start of a run. `scratch`: sockets and workspaces, a short path, since unix sockets allow 107 bytes."""

    config: Config
    prepared: Prepared
    run_id: str
    run_dir: Path
    scratch: Path

    @property
    def num_cells(self) -> int:
        """Elastic and standalone ones."""
        return self.config.cells.count + self.config.cells.standalone

    @property
    def _socket(self) -> Path:
        return self.scratch / "gateway" / "gateway.sock"

    def gateway(self) -> GatewaySpec:
        """The one gateway."""
        config = self.config
        return GatewaySpec(
            run_dir=self.run_dir,
            socket=self._socket,
            port=config.gateway.port,
            tokenizer=self.prepared.model,
            chat_template=config.model.chat_template,
            model=config.model.name,
            sampling=Sampling(config.rl.temperature, config.rl.max_tokens),
            window=self.prepared.window,
            body_limit_mb=config.gateway.body_limit_mb,
            seed=config.run.seed,
            harness=config.harness.kind,
        )

    def box(self) -> BoxSpec:
        """The one box."""
        config = self.config
        return BoxSpec(
            run_id=self.run_id,
            run_dir=self.run_dir,
            scratch=self.scratch,
            socket=self._socket,
            model=config.model.name,
            harness=harness_of(config),
            sandbox=config.sandbox.kind,
            images=config.sandbox.images,
            verifier=config.scoring.verifier,
            retries=config.scoring.retries,
            concurrent_verifiers=config.sandbox.concurrent,
        )

    def cell(self, index: int) -> CellSpec:
        """Cell 0 is the core."""
        config = self.config
        trainer = config.trainer
        return CellSpec(
            index=index,
            run_dir=self.run_dir,
            model=self.prepared.model,
            window=self.prepared.window,
            eos_ids=self.prepared.eos_ids,
            executions=config.cells.executions,
            seed=config.run.seed,
            chat_template=config.model.chat_template,
            engine=config.engine.kind,
            engine_args=config.engine.args,
            weights="ray" if self.num_cells > 1 else "local",
            trainer=trainer.kind,
            trainer_args={
                "loss": trainer.loss,
                "clip": None if trainer.clip == "auto" else trainer.clip,
                "weight_decay": trainer.weight_decay,
                "clip_norm": trainer.clip_norm,
                "optimizer": index == 0,
                "source": self.prepared.model,
                **({"lora": lora_of(config)} if trainer.lora_rank else {}),
                **({"kl": trainer.kl_coefficient} if trainer.kl_coefficient else {}),
                **({"entropy": trainer.entropy_coefficient} if trainer.entropy_coefficient else {}),
                **trainer.args,
            },
        )
