"""Whether a service was away or only the way to it, when somebody did not get an answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from handmesh.diagnosis.evidence import NETWORK, PART_OF, Evidence, Finding
from handmesh.diagnosis.wording import SERVICE_WORDS

SLACK_SECONDS = 1.0  # by which clocks and ticks may differ
YOUNG_SECONDS = 5.0  # after its start a service's peers may not have found it yet


@dataclass(frozen=True)
class Silence:
    """`caller` got no answer from `service` between two times. Both are names of services; a client is `you`."""

    caller: str
    service: str
    begin: float
    end: float
    reason: str
    position: int = 0


def blamed(silence: Silence, evidence: Evidence, state: str) -> Finding:
    """Says which part it was: the service when it is away, was stopped, or began since; else the network."""
    service, caller = SERVICE_WORDS[silence.service], _caller(silence.caller)
    span = f"{caller} got no answer for {max(0.0, silence.end - silence.begin):.1f} s ({silence.reason})"
    part, code = PART_OF[silence.service], f"{PART_OF[silence.service]}-away"
    look = (f"Look at the {service}: its process, then its log",)
    process = evidence.processes.get(silence.service)
    probe = evidence.probes.get(silence.service)
    if probe is not None and not probe.answered:
        how = "stands still or is cut off" if probe.silent else "is not there"
        what, seen = f"The {service} {how}", f"it does not answer you now either ({probe.reason})"
    elif process is None:
        what, seen = f"The {service} did not answer", "whether it was away or the way to it is not known any more"
    elif process.began > silence.begin - SLACK_SECONDS:
        what, seen = f"The {service} was away", f"process {process.instance} began only after the trouble had begun"
    elif any(_overlap(stall, silence) for stall in process.stalls):
        what, seen = f"The {service} stood still", f"process {process.instance} says so itself"
        code = f"{part}-stalled"
    else:
        what = f"The way from {caller} to the {service} is cut, or was"
        seen = f"the {service} answers you, and process {process.instance} served all the while"
        part, code = NETWORK, "network-between"
        look = (f"Look at the network between {caller} and the {service}: routes, firewalls, certificates",)
    return Finding(part, state, code, what, (span, seen), look, silence.position, silence.end, silence.reason)


def _caller(name: str) -> str:
    return f"the {SERVICE_WORDS[name]}" if name in SERVICE_WORDS else "you"


def _overlap(stall: tuple[float, float], silence: Silence) -> bool:
    return stall[0] < silence.end + SLACK_SECONDS and stall[1] > silence.begin - SLACK_SECONDS
