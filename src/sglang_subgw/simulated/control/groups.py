"""Process groups that weights come through: whether they are there, without anybody at the other end."""

from __future__ import annotations

from collections.abc import Mapping

from ..scheduler import Scheduler
from ..wire.structs import StandIn, make
from .family import Answer, ControlFamily, Handler, Send


class Groups(ControlFamily):
    """The groups of this engine as a receiver, and as a sender to another instance."""

    def __init__(self, scheduler: Scheduler, send: Send) -> None:
        super().__init__(scheduler, send)
        self.receiving: set[str] = set()
        self.sending: set[str] = set()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "InitWeightsUpdateGroupReqInput": self._init,
            "DestroyWeightsUpdateGroupReqInput": self._destroy,
            "InitWeightsSendGroupForRemoteInstanceReqInput": self._init_sending,
            "SendWeightsToRemoteInstanceReqInput": self._send_weights,
        }

    def _init(self, message: StandIn) -> Answer:
        if not message.group_name:
            raise AssertionError("Group name cannot be empty")
        self.receiving.add(message.group_name)
        text = "Succeeded to initialize custom process group."
        return make("InitWeightsUpdateGroupReqOutput", success=True, message=text)

    def _destroy(self, message: StandIn) -> Answer:
        there = message.group_name in self.receiving
        self.receiving.discard(message.group_name)
        text = "Succeeded to destroy custom process group." if there else "The group to be destroyed does not exist."
        return make("DestroyWeightsUpdateGroupReqOutput", success=there, message=text)

    def _init_sending(self, message: StandIn) -> Answer:
        self.sending.add(message.group_name)
        text = f"Succeeded to init group through {message.master_address}:{message.ports} group."
        return make("InitWeightsSendGroupForRemoteInstanceReqOutput", success=True, message=text)

    def _send_weights(self, message: StandIn) -> Answer:
        self.sending.remove(message.group_name)  # Of a group that isn't there, SGLang's own dies as well.
        text = f"Succeeded to send weights through {message.master_address}:{message.ports} {message.group_name}."
        return make("SendWeightsToRemoteInstanceReqOutput", success=True, message=text)
