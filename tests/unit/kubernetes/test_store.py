"""The caches of objects: the newest version counts, and what was deleted stays deleted."""

from __future__ import annotations

from muster.kubernetes.store import Deletions, Echoes, ObjectStore


def test_the_newest_version_of_an_object_counts() -> None:
    store: ObjectStore[str] = ObjectStore(Deletions())
    assert store.put("team/one", "a", version=2, obj="new")
    assert not store.put("team/one", "a", version=1, obj="old")
    assert store.put("team/one", "a", version=2, obj="whole")
    assert (store.get("a"), store.group("team/one"), store.count("team/one")) == ("whole", ["whole"], 1)


def test_an_object_is_in_one_group_only() -> None:
    store: ObjectStore[str] = ObjectStore(Deletions())
    store.put("team/one", "a", version=1, obj="pod")
    store.put("team/two", "a", version=2, obj="pod")
    assert (store.key("a"), store.group("team/one"), store.group("team/two")) == ("team/two", [], ["pod"])


def test_an_old_list_does_not_bring_a_deleted_object_back() -> None:
    store: ObjectStore[str] = ObjectStore(Deletions())
    store.put("team/one", "a", version=1, obj="pod")
    store.drop("a")
    assert not store.put("team/one", "a", version=1, obj="pod")
    assert (store.get("a"), store.keys) == (None, {})


def test_the_silence_of_watches_is_the_age_of_the_oldest_write_without_an_echo() -> None:
    now = [100.0]
    echoes = Echoes(lambda: now[0])
    echoes.received("early", 3)
    echoes.expect("early", 3)  # the watch was faster than the answer
    echoes.expect("a", 5)
    now[0] += 7
    echoes.expect("b", 6)
    assert echoes.silence() == 7
    echoes.received("a", 5)
    assert echoes.silence() == 0
    echoes.forget("b")
    now[0] += 9
    assert echoes.silence() == 0
