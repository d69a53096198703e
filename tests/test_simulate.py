import doctest
import json
from fractions import Fraction

import pytest

import ratekeeper.simulate
from ratekeeper.algorithms import FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.errors import InvalidRule
from ratekeeper.simulate import InvalidTraffic, Peak, Traffic, comparable_log, generate, read, simulate
from ratekeeper.simulate.run import peak

FIXED = FixedWindow(10, 10)
LOG = SlidingWindowLog(10, 10)
COUNTER = SlidingWindowCounter(10, 10)
BUCKET = TokenBucket(10, 1)
POLICING = LeakyBucket(10, 1)
SHAPING = LeakyBucket(10, 1, "shaping")
SECOND = 1_000_000


def at_seconds(*moments, costs=None):
    at_us = [int(moment * SECOND) for moment in moments]
    return Traffic("test", "a test", at_us, costs or [1] * len(at_us), at_us[0], at_us[-1] + 1)


def outcome(rule, traffic):
    (result,) = simulate(traffic, rule).outcomes
    return result


def seconds(traffic):
    return [at_us / SECOND for at_us in traffic.at_us]


# Traffic


def test_steady_traffic_is_evenly_spaced():
    assert seconds(generate("steady", LOG, rate=2, duration=2)) == [0, 0.5, 1, 1.5]


def test_steady_traffic_does_not_drift_at_a_rate_that_microseconds_cannot_hold():
    assert generate("steady", LOG, rate=3, duration="1s").at_us == [0, 333_333, 666_666]
    assert generate("steady", LOG, rate=3, duration=1000).at_us[-3:] == [999_000_000, 999_333_333, 999_666_666]


def test_burst_traffic_comes_all_at_once_twice_a_window():
    assert seconds(generate("burst", LOG, rate=1, duration=10)) == [0] * 5 + [5] * 5


def test_bursts_of_a_fractional_size_keep_the_rate():
    traffic = generate("burst", LOG, rate=Fraction(1, 2), duration=40)
    assert len(traffic.at_us) == 20
    assert seconds(traffic)[:6] == [0, 0, 0, 5, 5, 10]


def test_boundary_traffic_brings_the_limit_just_before_and_just_after_every_second_boundary():
    traffic = generate("boundary", FixedWindow(2, 10), duration=40)
    assert seconds(traffic) == [9.5, 9.75, 10, 10.25, 29.5, 29.75, 30, 30.25]


def test_boundary_traffic_never_falls_on_the_boundary_before_it_even_when_a_window_has_few_microseconds():
    assert generate("boundary", FixedWindow(2, "3us"), duration="6us").at_us == [2, 2, 3, 3]


def test_boundary_traffic_of_a_cost_brings_the_limit_in_units():
    traffic = generate("boundary", FixedWindow(10, 10), duration=20, cost=5)
    assert seconds(traffic) == [9.5, 9.75, 10, 10.25]
    assert traffic.costs == [5, 5, 5, 5]


def test_poisson_traffic_is_the_same_for_the_same_seed():
    assert generate("poisson", LOG, seed=7).at_us == generate("poisson", LOG, seed=7).at_us


def test_poisson_traffic_differs_by_seed():
    assert generate("poisson", LOG, seed=7).at_us != generate("poisson", LOG, seed=8).at_us


def test_poisson_traffic_has_about_its_rate():
    assert len(generate("poisson", LOG, rate=100, duration=100).at_us) == pytest.approx(10_000, rel=0.05)


def test_flood_traffic_begins_in_the_middle_of_a_window():
    traffic = generate("flood", LOG, rate=10, duration=20)
    assert seconds(traffic)[:3] == [5, 5.1, 5.2]
    assert seconds(traffic)[-1] == 19.9


@pytest.mark.parametrize(
    ("name", "requests"), [("steady", 80), ("burst", 80), ("boundary", 40), ("poisson", 73), ("flood", 350)]
)
def test_without_a_rate_traffic_follows_from_the_rule_that_it_aims_at(name, requests):
    traffic = generate(name, LOG)
    assert len(traffic.at_us) == requests
    assert (traffic.start_us, traffic.end_us) == (0, 40 * SECOND)


@pytest.mark.parametrize("name", ["steady", "burst", "boundary", "poisson", "flood"])
def test_every_traffic_comes_in_the_order_of_time_and_within_its_duration(name):
    at_us = generate(name, LOG, rate="7/s", duration="33s").at_us
    assert at_us == sorted(at_us)
    assert at_us[0] >= 0
    assert at_us[-1] < 33 * SECOND


def test_a_bucket_is_aimed_at_by_the_window_in_which_it_refills():
    assert generate("boundary", BUCKET).at_us == generate("boundary", FIXED).at_us


def test_unknown_traffic_names_what_there_is():
    with pytest.raises(InvalidTraffic, match="unknown traffic 'tsunami'; use steady, burst, boundary, poisson, flood"):
        generate("tsunami", LOG)


def test_traffic_without_a_request_is_refused():
    with pytest.raises(InvalidTraffic, match=r"boundary traffic has no request within 5 s .* increase the rate or"):
        generate("boundary", LOG, duration=5)


def test_more_than_two_million_requests_are_refused():
    with pytest.raises(InvalidTraffic, match="steady traffic has more than 2,000,000 requests"):
        generate("steady", LOG, rate=10**9, duration=10**6)


def test_a_request_more_than_the_most_is_refused():
    assert len(generate("steady", LOG, rate=1, duration=100, most=100).at_us) == 100
    with pytest.raises(InvalidTraffic, match="steady traffic has more than 100 requests"):
        generate("steady", LOG, rate=1, duration=101, most=100)


def test_rare_bursts_of_a_short_window_are_found_without_a_step_for_every_window():
    assert seconds(generate("burst", FixedWindow(1, "1us"), rate="1/day", duration="2d")) == [0, 86_400]


@pytest.mark.parametrize(
    ("arguments", "error"), [({"rate": 0}, InvalidRule), ({"duration": -1}, InvalidRule), ({"cost": 1.5}, TypeError)]
)
def test_a_bad_rate_duration_or_cost_is_refused(arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        generate("steady", LOG, **arguments)


def test_a_title_says_what_comes():
    assert generate("steady", LOG, rate=100, duration="12.5s").title == "steady traffic, 1,250 requests in 12.5 s"
    assert at_seconds(7).title == "test traffic, 1 request in 0 s"


# Files


def file_of(tmp_path, content):
    path = tmp_path / "times.txt"
    path.write_bytes(content)
    return str(path)


def test_a_file_gives_times_and_costs_in_the_order_of_time(tmp_path):
    traffic = read(file_of(tmp_path, b"# requests\n\n12.5\n12.25 3 # three\n  13., 20\r\n7\n"))
    assert traffic.at_us == [7_000_000, 12_250_000, 12_500_000, 13_000_000]
    assert traffic.costs == [1, 3, 1, 20]
    assert (traffic.start_us, traffic.end_us) == (7_000_000, 13_000_001)


def test_what_a_line_does_not_say_costs_the_default(tmp_path):
    assert read(file_of(tmp_path, b"1\n2 3\n"), cost=5).costs == [5, 3]


def test_a_time_is_read_exactly_and_cut_to_microseconds(tmp_path):
    assert read(file_of(tmp_path, b"1700000000.1234569\n")).at_us == [1_700_000_000_123_456]


@pytest.mark.parametrize(
    "line", ["soon", "-1", "nan", "1e3", "1 0", "1 -2", "1 1.5", "1 2 3", "1700000000000", "\x00", "\u0661"]
)
def test_a_bad_line_is_named_with_its_file_and_number(tmp_path, monkeypatch, line):
    file_of(tmp_path, f"1\n\n{line}\n".encode())
    monkeypatch.chdir(tmp_path)  # long paths are shortened
    with pytest.raises(InvalidTraffic, match=r"'times\.txt', line 3: cannot read .* such as '12.5' or '12.5 3'"):
        read("times.txt")


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path):
    with pytest.raises(InvalidTraffic, match="line 1: cannot read"):
        read(file_of(tmp_path, b"\xff\xfe\x00"))


def test_a_byte_order_mark_is_skipped(tmp_path):
    assert read(file_of(tmp_path, b"\xef\xbb\xbf1\n")).at_us == [1_000_000]


def test_an_endless_line_is_not_read_to_its_end():
    with pytest.raises(InvalidTraffic, match="line 1: cannot read"):
        read("/dev/zero")


def test_a_file_without_a_request_is_refused(tmp_path):
    with pytest.raises(InvalidTraffic, match="has no timestamps"):
        read(file_of(tmp_path, b"# nothing\n"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidTraffic, match=r"cannot read file '.*nowhere': No such file or directory"):
        read(str(tmp_path / "nowhere"))


# What the rules do with it


def test_the_fixed_window_lets_a_double_burst_through_at_the_boundary():
    result = outcome(FIXED, generate("boundary", FIXED))
    assert result.admitted == 40
    assert result.peak == Peak(20, 9_500_000)
    assert (result.deviation.over, result.deviation.under, result.deviation.percent) == (20, 0, 50.0)


def test_the_log_never_lets_more_than_the_limit_through_in_any_window():
    result = outcome(LOG, generate("boundary", FIXED))
    assert result.admitted == 20
    assert result.peak == Peak(10, 9_500_000)
    assert (result.deviation.over, result.deviation.under, result.deviation.percent) == (0, 0, 0.0)


def test_the_counter_errs_by_little_at_the_boundary():
    result = outcome(COUNTER, generate("boundary", FIXED))
    assert result.admitted == 22
    assert result.peak == Peak(11, 9_500_000)
    assert (result.deviation.over, result.deviation.under, result.deviation.percent) == (2, 0, 5.0)


def test_the_counter_denies_where_the_log_has_room_once_a_burst_is_a_window_old():
    result = outcome(COUNTER, at_seconds(*[1] * 10, 11, 11))
    assert result.departures_us[-1] is None
    assert (result.deviation.over, result.deviation.under) == (0, 1)


def test_the_token_bucket_lets_one_burst_through_and_then_its_rate():
    result = outcome(BUCKET, at_seconds(*[5] * 20, *[6] * 20, *[8] * 20))
    assert [at_us for at_us in result.departures_us if at_us] == [5 * SECOND] * 10 + [6 * SECOND] + [8 * SECOND] * 2
    assert result.peak == Peak(13, 5 * SECOND)


def test_policing_admits_what_the_token_bucket_admits():
    traffic = generate("poisson", BUCKET, duration=100)
    assert outcome(POLICING, traffic).departures_us == outcome(BUCKET, traffic).departures_us


def test_shaping_spaces_departures_exactly_a_second_apart():
    result = outcome(SHAPING, at_seconds(*[5] * 20))
    assert result.departures_us == [at * SECOND for at in range(5, 15)] + [None] * 10
    assert result.shaping.closest_us == SECOND
    assert result.shaping.longest_delay_us == 9 * SECOND


def test_the_peak_of_shaping_counts_departures():
    traffic = generate("flood", SHAPING)
    assert outcome(SHAPING, traffic).peak.units == 10
    assert outcome(POLICING, traffic).peak.units == 19


def test_one_shaped_request_has_no_spacing():
    assert outcome(SHAPING, at_seconds(1)).shaping.closest_us is None


def test_only_shaping_has_figures_of_shaping():
    assert outcome(POLICING, at_seconds(1)).shaping is None


def test_costs_count_as_units():
    result = outcome(LOG, at_seconds(1, 2, 3, costs=[6, 6, 4]))
    assert result.departures_us == [1_000_000, None, 3_000_000]
    assert (result.admitted, result.admitted_units, result.peak.units) == (2, 10, 10)


def test_a_cost_that_never_fits_is_denied_and_not_an_error():
    result = outcome(FIXED, at_seconds(1, costs=[11]))
    assert (result.admitted, result.peak, result.deviation.under) == (0, Peak(0, None), 0)


def test_no_traffic_at_all_has_no_error():
    assert outcome(FIXED, Traffic("none", "nothing", [], [], 0, SECOND)).deviation.percent == 0.0


def test_a_window_holds_what_is_less_than_its_length_apart():
    assert peak([0, 9, 10], [1, 1, 1], 10) == Peak(2, 0)
    assert peak([0, 9, 10], [1, 1, 1], 11) == Peak(3, 0)
    assert peak([0, 9, 10], [5, 1, 1], 10) == Peak(6, 0)


@pytest.mark.parametrize("rule", [FIXED, LOG, COUNTER, BUCKET, POLICING, SHAPING])
def test_peak_and_error_are_what_their_definitions_count(rule):
    traffic = generate("poisson", rule, rate=3, duration=60, seed=5)
    result = outcome(rule, traffic)
    passed = [at_us for at_us in result.departures_us if at_us is not None]
    window_us = 10 * SECOND
    assert result.peak.units == max(sum(at <= other < at + window_us for other in passed) for at in passed)
    admitted = [at for at, departure in zip(traffic.at_us, result.departures_us, strict=True) if departure is not None]
    full = [sum(now - window_us < at < now for at in admitted) >= 10 for now in traffic.at_us]
    decisions = list(zip(full, result.departures_us, strict=True))
    assert result.deviation.over == sum(is_full and at is not None for is_full, at in decisions)
    assert result.deviation.under == sum(not is_full and at is None for is_full, at in decisions)


@pytest.mark.parametrize(
    ("rule", "log"),
    [
        (FIXED, LOG),
        (COUNTER, LOG),
        (BUCKET, LOG),
        (SHAPING, LOG),
        (TokenBucket(1, 3), SlidingWindowLog(1, "333334us")),
    ],
)
def test_each_rule_is_compared_with_the_log_that_means_the_same(rule, log):
    assert comparable_log(rule) == log


def test_a_bucket_that_refills_too_slowly_to_compare_is_refused():
    with pytest.raises(InvalidRule, match="'token-bucket 1/365d burst 2' takes longer than 407 days to refill"):
        comparable_log(TokenBucket(2, "1/year"))


def test_rules_are_named_as_in_a_limiter():
    result = simulate(at_seconds(1), {"user": "10/s", "all": FIXED})
    assert [each.name for each in result.outcomes] == ["user", "all"]


def test_progress_adds_up_to_all_decisions():
    done = []
    simulate(generate("steady", LOG, rate=100, duration=101), [FIXED, LOG], done.append)
    assert len(done) == 6
    assert sum(done) == 20_200


def test_the_end_is_when_the_last_shaped_request_has_departed():
    assert simulate(at_seconds(*[5] * 3), SHAPING).end_us == 7 * SECOND + 1
    assert simulate(generate("steady", LOG), LOG).end_us == 40 * SECOND


def test_the_json_has_a_stable_schema():
    result = simulate(at_seconds(1, 1, 1, costs=[1, 2, 2]), LeakyBucket(4, 1, "shaping")).to_json()
    assert json.loads(json.dumps(result)) == {
        "schema": 1,
        "traffic": {"name": "test", "description": "a test", "start_us": 1_000_000, "end_us": 1_000_001},
        "requests": {"at_us": [1_000_000, 1_000_000, 1_000_000], "cost": [1, 2, 2]},
        "rules": [
            {
                "name": "leaky-bucket 1/s burst 4 shaping",
                "text": "leaky-bucket 1/s burst 4 shaping",
                "algorithm": "leaky-bucket",
                "limit": 4,
                "window_us": 4_000_000,
                "departures_us": [1_000_000, 2_000_000, None],
                "offered": {"requests": 3, "units": 5},
                "admitted": {"requests": 2, "units": 3},
                "denied": {"requests": 1, "units": 2},
                "peak": {"units": 3, "from_us": 1_000_000},
                "deviation": {"over": 0, "under": 0, "percent": 0.0},
                "shaping": {"closest_us": 1_000_000, "longest_delay_us": 1_000_000},
            }
        ],
    }


def test_the_same_simulation_gives_the_same_json():
    results = [simulate(generate("poisson", LOG, seed=3), [FIXED, COUNTER]).to_json() for _ in range(2)]
    assert results[0] == results[1]


def test_the_example_in_the_documentation_is_true():
    assert doctest.testmod(ratekeeper.simulate) == (0, 4)
