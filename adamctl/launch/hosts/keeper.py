"""Decides what runs on which host while hosts come, drain and go: a pure state machine, events in, decisions out.

    a host comes      before the run begins: counted; later: it gets a worker while there are fewer than wanted, else
                      it waits as a spare
    a host drains     its workers and data servers end and start elsewhere; its parameter servers are emptied, then end
    a host is lost    all that was there is one cause: it starts elsewhere, on a spare first, or the run goes on
                      without, or fails once, if a part of the model was only there; a controller is replaced by a new
                      one (`adamctl.launch.hosts.seats`); before anything serves, the run begins anew without the host

A role that starts elsewhere keeps its name. The controllers give the name away when the earlier process has certainly
ended or has been silent for longer than its lease, so nothing here has to know whether it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from adamctl.config.experiment import Experiment
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.controller_keeper import ControllerKeeper
from adamctl.launch.hosts.decisions import (
    BeginAnew,
    Decision,
    Drain,
    End,
    GiveUp,
    OneMore,
    Put,
    Release,
    Say,
    Seat,
    StopRun,
)
from adamctl.launch.hosts.homes import Homes
from adamctl.launch.hosts.placement import (
    FRONT,
    KnownHost,
    Offer,
    Placed,
    partitions_of,
    place_roles,
    workers_on,
)
from adamctl.launch.places.engines import BY_HAND

SETTLE_S = 2.0
"""Seconds that a run with enough hosts waits for more of those that it may have."""
HOLD_S = 60.0
"""Seconds that a run waits for a host which has the only copy of a part of the model on its disk."""
END_MARGIN_S = 3.0
"""Seconds before a host is taken away in which what is still there is ended."""
MOVED = ("worker", "data", "ps")


@dataclass
class HostKeeper:
    """The hosts and roles of one run. Every call returns what to do, in order."""

    experiment: Experiment
    asked: HostsAsked
    begun: bool = False
    placed: dict[str, Placed] = field(default_factory=dict)
    """Node -> where it is, or is about to be."""
    hosts: dict[str, KnownHost] = field(default_factory=dict)
    saving: bool = False
    """Whether the run writes its last checkpoint: it needs its servers where they are, and no further host."""
    formed: bool = False
    """Whether the controllers are a cluster: somebody has become a member of it, and serves."""
    _enough_since_s: float = inf
    _ending: dict[str, Placed | None] = field(default_factory=dict)
    """Nodes told to end, and where each starts again when it has."""
    _held: dict[str, float] = field(default_factory=dict)
    """Lost hosts that are waited for, and until when."""
    _announced: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Hosts that are not there and will be taken away: when, and why. Engines say it once."""

    def __post_init__(self) -> None:
        self.controllers = ControllerKeeper(self.placed, self.hosts, self._ending)
        self.homes = Homes(self.experiment, self.placed, self.hosts, self._ending)

    # --- hosts come -------------------------------------------------------------------------------------------------

    def arrived(self, offer: Offer, again: bool, now_s: float) -> list[Decision]:
        """A host is there; `again`: with the agent that was lost, so that its roles may still run."""
        known = self.hosts.get(offer.name)
        until_s = known.until_s if again and known is not None else inf  # what will be taken away still will be
        self.hosts[offer.name] = KnownHost(offer, until_s=until_s)
        held = self._held.pop(offer.name, None)
        if not self.begun:
            leaves = self._leaves(offer.name, now_s)
            return [*leaves, *([Say(self.waiting)] if self.waiting else self._begin_if_enough(now_s))]
        self.controllers.host_back(offer.name, again)
        there = [one for one in self.placed.values() if one.host == offer.name]
        puts: list[Decision] = [] if again else [Put(one) for one in there]
        leaves = self._leaves(offer.name, now_s)
        if held is not None:
            return [Say(f"{offer.name} is there again"), *puts, *leaves, *self._substitute()]
        if until_s != inf or leaves:
            return [*puts, *leaves, *self._release(offer.name)]
        substitute = self._substitute()
        return [*puts, *substitute, *self._grow(f"{offer.name} {'is there again' if again else 'has come'}")]

    def _leaves(self, host: str, now_s: float) -> list[Decision]:
        """Begins to empty a host that has come, if it was announced to be taken away and is not overdue."""
        until_s, why = self._announced.pop(host, (-inf, ""))
        return self.draining(host, until_s - now_s, why, now_s) if now_s < until_s else []

    @property
    def waiting(self) -> str:
        """What the run waits for before it begins; empty if for nothing."""
        here = self.homes.usable()
        missing = self.asked.least - len(here)
        if self.begun or missing <= 0:
            return ""
        found = f"{', '.join(here)} {'is' if len(here) == 1 else 'are'} there" if here else "none is there yet"
        return f"waiting for {missing} of {self.asked.least} host{'s' * (self.asked.least > 1)} ({found})"

    @property
    def waiting_for_more(self) -> str:
        """What a run that has begun could still use; empty if nothing."""
        wanted = self.asked.most + self.asked.spares
        here = len(self.homes.usable())
        return (
            f"{here} of {wanted} hosts are there, and more are taken as they come"
            if self.begun and here < wanted
            else ""
        )

    def _begin_if_enough(self, now_s: float) -> list[Decision]:
        here = [host.offer for host in self.hosts.values() if host.usable]
        if self.begun or len(here) < self.asked.least:
            self._enough_since_s = inf
            return []
        self._enough_since_s = min(self._enough_since_s, now_s)
        if len(here) < self.asked.most and now_s < self._enough_since_s + SETTLE_S:
            return []
        self.begun = True
        placed = self.controllers.begin(place_roles(self.experiment, here[: self.asked.most]))
        self.placed |= {one.node: one for one in placed}
        said = f"{len(here)} host{'s' * (len(here) > 1)}: {', '.join(offer.name for offer in here)}{self._more}"
        copies = self.experiment.cluster.replication
        if copies > len(here):
            said += f"; {copies} copies of each part of the model share {len(here)}"
        return [Say(said), *map(Put, placed)]

    def _grow(self, why: str) -> list[Decision]:
        """Gives idle hosts workers while the run may have more: those that a replica lacks, then whole replicas."""
        if self.experiment.has_own_parameters:
            return self._give_back(why)
        partitions, found = partitions_of(self.experiment), list[Decision]()
        most = workers_on(self.experiment, self.asked.most)
        while (count := len(self.homes.nodes("worker"))) < most:
            lacking, idle = partitions - count % partitions, self.homes.idle()
            if len(idle) < lacking:
                break
            for host in idle[:lacking]:
                found.append(self.homes.put("worker", self.homes.new_name("worker"), host))
        if found:
            nodes = ", ".join(one.placed.node for one in found if isinstance(one, Put))
            return [Say(f"{why}: starting {nodes}{self._more}"), *found]
        return self._give_back(why) or [Say(f"{why}: it waits as a spare{self._more}")]

    def _give_back(self, why: str) -> list[Decision]:
        """Lets idle hosts go that an engine has given beyond what the run wants: what they replaced is there again."""
        beyond = len(self.homes.usable()) - self.asked.most - self.asked.spares
        busy = {one.host for one in (*self.placed.values(), *self._ending.values()) if one is not None}
        idle = [name for name in reversed(self.homes.idle()) if name not in busy]
        if beyond <= 0 or not idle or self.asked.engine == BY_HAND:  # whoever starts agents by hand ends them as well
            return []
        found: list[Decision] = [Say(f"{why}: {', '.join(idle[:beyond])} is needed no more and is let go")]
        for name in idle[:beyond]:
            self.hosts[name].lost = True
            found.append(Release(name, "the run has all the hosts that it wants"))
        return found

    @property
    def _more(self) -> str:
        return f"; {self.waiting_for_more}" if self.waiting_for_more else ""

    # --- hosts go ---------------------------------------------------------------------------------------------------

    def lost(self, host: str, why: str, now_s: float) -> list[Decision]:
        """A host is lost, with all that was there: one cause. Nothing is known of the processes there."""
        known = self.hosts.get(host)
        if known is None or known.lost:
            return []
        known.lost = True
        waited = self.controllers.host_lost(host)
        there = [one for one in self.placed.values() if one.host == host]
        if not self.formed and any(one.role == "controller" for one in there):
            return self._begin_anew(host, why, now_s)
        if not self.begun or not (there or waited):
            more = self._one_more(host, "is lost")
            return [Say(f"{host} is lost: {why}"), *more, *([Say(self.waiting)] if self.waiting else [])]
        if reason := self._only_there(host, there):
            return [GiveUp(host, f"{host} is lost: {why}; {reason}")]
        holds = [one.node for one in there if one.role == "ps"]
        if holds and self.experiment.cluster.replication == 1:
            self._held[host] = now_s + HOLD_S
            text = f"{', '.join(holds)} kept a part of the model on its disk; waiting {HOLD_S:g} s for it to come back"
            return [Say(f"{host} is lost: {why}; {text}")]
        return self._replace(host, why, there)

    def _only_there(self, host: str, there: Sequence[Placed]) -> str:
        """Returns what the run cannot do without and had only there; empty if nothing."""
        if not self.controllers.seats.have_majority:
            return "most of the controllers are lost"
        if self.experiment.has_own_parameters and any(one.role == "worker" for one in there):
            return "the parameters were there; continue from the last checkpoint with --resume"
        servers, cluster = [one.node for one in there if one.role == "ps"], self.experiment.cluster
        if servers and cluster.replication == 1 and cluster.store == "none":
            return f"the only copy of a part of the model was there ({', '.join(servers)}); continue with --resume"
        if not self.homes.usable() and not (servers and cluster.replication == 1):  # with these it is waited for
            return "no host is left"
        return ""

    def _replace(self, host: str, why: str, there: Sequence[Placed]) -> list[Decision]:
        """Starts elsewhere what was on a lost host, and a new controller for the place of one that was there."""
        puts: list[Put] = []
        substitute = self._substitute()
        without = [one.node for one in there if one.role not in MOVED and not substitute]
        moved = [one for one in there if one.role in MOVED]
        for one in moved:
            del self.placed[one.node]
            self._ending.pop(one.node, None)
        for one in moved:
            home = self.homes.home(one.role)
            if home is None:
                without.append(one.node)
            else:
                puts.append(self.homes.put(one.role, one.node, home))
        said = f"{host} is lost: {why}"
        if puts:
            said += "; " + ", ".join(f"{one.placed.node} starts again on {one.placed.host}" for one in puts)
        if without:
            said += f"; continuing without {', '.join(without)}"
        return [Say(said), *puts, *substitute, *self._one_more(host, "is lost")]

    def _one_more(self, host: str, why: str) -> list[Decision]:
        """Asks for a host in place of this one, once: it may be taken away first and lost then."""
        known = self.hosts[host]
        asked, known.replaced = known.replaced, True
        return [] if asked else [OneMore(f"{host} {why}")]

    def _begin_anew(self, host: str, why: str, now_s: float) -> list[Decision]:
        """Forgets everything but the hosts: without this one the controllers never form, and nothing is trained yet."""
        self.begun, self._enough_since_s = False, inf
        for forgotten in (self.placed, self._ending, self._held):
            forgotten.clear()
        self.controllers.begin(())
        text = f"{host} is lost: {why}; it should have had a controller, and nothing is trained yet, so all begins anew"
        found: list[Decision] = [Say(text), BeginAnew(f"{host} is lost"), *self._one_more(host, "is lost")]
        return [*found, *(self._begin_if_enough(now_s) or ([Say(self.waiting)] if self.waiting else []))]

    def draining(self, host: str, deadline_s: float, why: str, now_s: float) -> list[Decision]:
        """A host will be taken away in so many seconds; one that is not there is emptied if it comes before that."""
        known = self.hosts.get(host)
        if known is None or known.lost:
            self._announced[host] = (now_s + deadline_s, why)
            return []
        first = known.until_s == inf
        known.until_s = min(known.until_s, now_s + max(deadline_s, 0.0))
        if now_s >= known.until_s - END_MARGIN_S:
            return self._time_is_over(host, why, now_s)
        if not first:
            return []
        there = [one for one in self.placed.values() if one.host == host]
        found: list[Decision] = [Say(f"{host} will be taken away in {deadline_s:.0f} s: {why}")]
        if self.saving:
            return found
        if self.begun and not self.homes.usable():
            return [*found, StopRun("no host is left that will not be taken away")]
        for one in there:
            if one.role == "ps":
                found += self._empty(one)
            elif one.role == "worker" and self.experiment.has_own_parameters:
                found.append(StopRun(f"{one.node} has the only parameters, and {host} is taken away"))
            elif one.role in MOVED:
                home = self.homes.home(one.role)
                self._ending[one.node] = None if home is None else self.homes.at(one.role, one.node, home)
                found.append(End(one.node, f"{host} is taken away"))
        return [*found, *self._one_more(host, "is taken away"), *self._release(host)]

    def _empty(self, server: Placed) -> list[Decision]:
        """Has a parameter server emptied, and another one started if too few would be left, or a host is free."""
        found: list[Decision] = []
        left = [node for node in self.homes.nodes("ps") if self.hosts[self.placed[node].host].usable]
        home = self.homes.home("ps")
        if home is not None and (len(left) < max(self.experiment.cluster.replication, 1) or home in self.homes.idle()):
            found.append(self.homes.put("ps", self.homes.new_name("ps"), home))
        elif not left:
            return [Say(f"nothing can take what {server.node} holds")]
        return [*found, Drain(server.node)]

    def drained(self, node: str) -> list[Decision]:
        """A parameter server holds nothing any more."""
        self._ending[node] = None
        return [End(node, "everything was moved off it")]

    def ended(self, node: str) -> list[Decision] | None:
        """An agent has reaped this role; None if nobody told it to end, so that supervision decides."""
        if node == self.controllers.seats.waiting:
            return self.not_seated(f"{node} ended before it was a member of the controllers")
        if node not in self._ending:  # with its host, which the run waits for or has let go, or by itself
            placed = self.placed.get(node)
            with_host = placed is not None and placed.host != FRONT and self.hosts[placed.host].lost
            return [] if with_host else None
        elsewhere = self._ending.pop(node)
        gone = self.placed.pop(node, None)
        found: list[Decision] = []
        if elsewhere is not None:  # where it should have gone may be lost meanwhile
            home = elsewhere.host if self.hosts[elsewhere.host].usable else self.homes.home(elsewhere.role)
            if home is None:
                found = [Say(f"{node} has ended, and no host is left for it; continuing without it")]
            else:
                found = [Say(f"{node} moves to {home}"), self.homes.put(elsewhere.role, node, home)]
        return [*found, *(self._release(gone.host) if gone is not None else [])]

    def _release(self, host: str) -> list[Decision]:
        """Lets a draining host go once nothing is left there but a controller, if the others can do without that."""
        known = self.hosts.get(host)
        left = [one for one in self.placed.values() if one.host == host and one.role != "controller"]
        if known is None or known.until_s == inf or known.lost or left:
            return []
        if not self.controllers.can_do_without(host, self.formed):
            return []
        known.lost = True
        self.controllers.host_lost(host)
        let_go: list[Decision] = [Say(f"{host} is empty and is let go"), Release(host, "everything was moved off it")]
        return [*let_go, *self._substitute()]

    # --- controllers --------------------------------------------------------------------------------------------------

    def serves(self, node: str) -> list[Decision]:
        """A role serves: what waits for a seat may get it, and what is a member shows that the controllers are one."""
        if node == self.controllers.seats.waiting:
            return [Seat(node)]
        if self.formed or node not in self.placed or self.placed[node].role == "controller":
            return []
        self.formed = True
        return self._release_all()

    def seated(self, members: Sequence[str]) -> list[Decision]:
        """The cluster has said who its members are."""
        found = self.controllers.seated(members)
        return [*found, *self._substitute(), *self._release_all()] if found else []

    def not_seated(self, why: str) -> list[Decision]:
        """The controller that waits for a seat has ended, or cannot be started; another one may have more luck."""
        self.controllers.failed()
        return [Say(why), *self._substitute()]

    @property
    def vacant(self) -> str:
        """The lost controller whose place another one is to take next; empty if none."""
        return self.controllers.seats.vacant(self._held)

    def _substitute(self) -> list[Decision]:
        return self.controllers.substitute(self._held)

    def _release_all(self) -> list[Decision]:
        return [one for name in self.hosts for one in self._release(name)]

    def tick(self, now_s: float) -> list[Decision]:
        """Time has passed: the run begins, held hosts are given up, and what was not moved in time ends."""
        found = self._begin_if_enough(now_s)
        for host, until_s in list(self._held.items()):
            if now_s >= until_s:
                del self._held[host]
                nodes = ", ".join(one.node for one in self.placed.values() if one.host == host and one.role == "ps")
                text = f"{host} did not come back within {HOLD_S:g} s; a part of the model was only there ({nodes})"
                found.append(GiveUp(host, f"{text}; continue from the last checkpoint with --resume"))
        for name, host_state in self.hosts.items():
            if not host_state.lost and now_s >= host_state.until_s - END_MARGIN_S:
                left = ", ".join(one.node for one in self.placed.values() if one.host == name)
                late = f"its time was over before {left} had ended" if left else "its time was over"
                found += self._time_is_over(name, late, now_s)
        return found

    def _time_is_over(self, host: str, why: str, now_s: float) -> list[Decision]:
        """Ends what is left on a host that is taken away now, or whose agent ends, and counts it as lost."""
        left = [one.node for one in self.placed.values() if one.host == host and one.node not in self._ending]
        ends = [End(node, "its host is taken away") for node in left]
        return [*ends, *self.lost(host, why, now_s), Release(host, why)]

    def next_s(self) -> float:
        """Returns when `tick` may have something to do; infinity if never."""
        times = [host.until_s - END_MARGIN_S for host in self.hosts.values() if not host.lost]
        begins = self._enough_since_s + SETTLE_S if not self.begun else inf
        return min([begins, *times, *self._held.values()])
