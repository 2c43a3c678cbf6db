"""Defects of the replacement of the cluster's secret: each has living hosts refuse each other."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.cluster.peers.cluster_secrets import ClusterSecrets
from foqs.model.cluster_secret import KnownSecret
from foqs.model.secret import Secret
from tests.sim.planting import in_place_of


@in_place_of(ClusterSecrets, "for_host")
def shows_the_next_secret_to_who_does_not_know_it(self: ClusterSecrets, host_id: str) -> Sequence[KnownSecret]:
    return self._known.present[-1:]


@in_place_of(ClusterSecrets, "accepted")
def takes_the_current_secret_alone(self: ClusterSecrets) -> Sequence[Secret]:
    return [one.secret for one in self._known.present[:1]]


@in_place_of(ClusterSecrets, "accepted")
def takes_no_secret_that_has_just_ended(self: ClusterSecrets) -> Sequence[Secret]:
    return [one.secret for one in self._known.present]
