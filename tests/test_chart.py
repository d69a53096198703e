import xml.etree.ElementTree as ET

import pytest

from ratekeeper.rules import named
from ratekeeper.simulate import Traffic, generate, plot, read, simulate
from ratekeeper.simulate.chart import ASCII, BLOCKS, Chart, glyphs_for
from ratekeeper.simulate.grid import Grid, fit

SECOND = 1_000_000
SIX = (
    "fixed-window 10/10s; sliding-window-log 10/10s; sliding-window-counter 10/10s; "
    "token-bucket 1/s burst 10; leaky-bucket 1/s burst 10; leaky-bucket 1/s burst 10 shaping"
)


def simulated(traffic, rules=SIX, **arguments):
    by_name = named(rules)
    return simulate(generate(traffic, next(iter(by_name.values())), **arguments), by_name)


def lines(chart, simulation):
    return chart.render(simulation).split("\n")


# The time axis


def test_a_boundary_has_a_column_between_what_comes_before_and_after_it():
    grid = Grid(start_us=0, end_us=20, section_us=10, cells=5)
    assert [grid.column(at_us) for at_us in (0, 1, 2, 9, 10, 19)] == [0, 0, 1, 4, 6, 10]
    assert list(grid.boundaries_us()) == [10]
    assert grid.columns == 11


def test_an_axis_may_begin_in_the_middle_of_a_window():
    grid = Grid(start_us=14, end_us=25, section_us=10, cells=5)
    assert [grid.column(at_us) for at_us in (14, 19, 20, 24)] == [0, 2, 4, 6]


@pytest.mark.parametrize("columns", [37, 57, 200, 977])
@pytest.mark.parametrize("window_us", [1, 1_000, 10_000_000, 86_400_000_000])
@pytest.mark.parametrize(
    ("start_us", "end_us"), [(0, 40_000_000), (17, 18), (1_700_000_000_000_000, 1_700_000_900_000_000)]
)
def test_an_axis_fits_its_columns(columns, window_us, start_us, end_us):
    grid = fit(start_us, end_us, window_us, columns)
    assert 1 <= grid.columns <= columns
    assert grid.section_us % window_us == 0


def test_the_legend_says_when_not_every_boundary_is_shown():
    chart = lines(Chart(80), simulated("steady", "fixed-window 10/10s", duration=3_600))
    assert chart[0] == "█ admitted  ▒ denied  ┊ window boundary, 1 of 50 shown"


def test_many_windows_are_marked_in_round_numbers():
    assert fit(0, 3_600 * SECOND, 10 * SECOND, 57).section_us == 500 * SECOND


# The terminal


def test_lanes_show_the_double_burst_and_who_denies_it():
    assert lines(Chart(80), simulated("boundary"))[:15] == [
        "█ admitted  ▒ denied  ┊ window boundary, every 10 s",
        "                       0 s       10 s       20 s       30 s",
        "offered                         █┊█         ┊         █┊█",
        "fixed-window                    █┊█         ┊         █┊█",
        "  10/10s                         ┊          ┊          ┊",
        "sliding-window-log              █┊          ┊         █┊",
        "  10/10s                         ┊▓         ┊          ┊▓",
        "sliding-window-counter          █┊▁         ┊         █┊▁",
        "  10/10s                         ┊▓         ┊          ┊▓",
        "token-bucket                    █┊          ┊         █┊",
        "  1/s burst 10                   ┊▓         ┊          ┊▓",
        "leaky-bucket                    █┊          ┊         █┊",
        "  1/s burst 10                   ┊▓         ┊          ┊▓",
        "leaky-bucket                    ▁┊▁▁▁▁▁▁▁▁▁ ┊         ▁┊▁▁▁▁▁▁▁▁▁",
        "  1/s burst 10 shaping           ┊▓         ┊          ┊▓",
    ]


def test_the_table_has_the_totals_the_peak_and_the_error():
    assert lines(Chart(80), simulated("boundary"))[16:23] == [
        "rule                              offered admitted denied     peak       error",
        "fixed-window 10/10s                    40       40      0 20 of 10 +20 -0 50 %",
        "sliding-window-log 10/10s              40       20     20 10 of 10   +0 -0 0 %",
        "sliding-window-counter 10/10s          40       22     18 11 of 10   +2 -0 5 %",
        "token-bucket 1/s burst 10              40       20     20 10 of 10   +0 -0 0 %",
        "leaky-bucket 1/s burst 10              40       20     20 10 of 10   +0 -0 0 %",
        "leaky-bucket 1/s burst 10 shaping      40       20     20 10 of 10   +0 -0 0 %",
    ]


def test_a_narrow_table_has_two_lines_for_each_rule():
    assert lines(Chart(60), simulated("boundary"))[16:20] == [
        "rule                   offered admitted denied     peak",
        "                                                  error",
        "fixed-window                40       40      0 20 of 10",
        "  10/10s                                    +20 -0 50 %",
    ]


def test_the_spacing_and_the_longest_delay_of_shaping_are_told():
    text = Chart(120).render(simulated("boundary"))
    assert text.endswith(
        "leaky-bucket 1/s burst 10 shaping: shown as they depart, at least 1 s apart; the longest delay is 8.55 s."
    )


def test_shaping_of_a_single_request_has_no_spacing_to_tell():
    text = Chart(120).render(simulate(Traffic("one", "one", [0], [1], 0, 1), "leaky-bucket 1/s shaping"))
    assert text.endswith("leaky-bucket 1/s burst 1 shaping: fewer than two requests departed.")


@pytest.mark.parametrize("traffic", ["steady", "burst", "boundary", "poisson", "flood"])
@pytest.mark.parametrize("width", [60, 61, 80, 133, 1000])
def test_nothing_is_wider_than_the_width(traffic, width):
    assert max(map(len, lines(Chart(width), simulated(traffic)))) <= width


def test_plain_ascii_is_enough():
    rows = lines(Chart(60, ASCII), simulated("boundary"))
    assert "\n".join(rows).isascii()
    assert rows[2:7] == [
        "offered                    #|#    |    #|#",
        "fixed-window               #|#    |    #|#",
        "  10/10s                    |     |     |",
        "sliding-window-log         #|     |    #|",
        "  10/10s                    |X    |     |X",
    ]


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [
        ("utf-8", BLOCKS),
        ("ascii", ASCII),
        ("latin-1", ASCII),
        ("cp437", ASCII),
        (None, ASCII),
        ("no-such-encoding", ASCII),
    ],
)
def test_blocks_are_used_where_the_encoding_has_them(encoding, glyphs):
    assert glyphs_for(encoding) is glyphs


def test_colors_add_to_the_characters_and_change_none():
    simulation = simulated("boundary")
    colored = Chart(80, color=True).render(simulation)
    assert "\x1b[94m         █\x1b[0m\x1b[2m┊\x1b[0m\x1b[94m█         \x1b[0m" in colored
    assert "\x1b[33m▓         \x1b[0m" in colored
    for code in ("\x1b[0m", "\x1b[2m", "\x1b[33m", "\x1b[94m"):
        colored = colored.replace(code, "")
    assert [line.rstrip() for line in colored.split("\n")] == lines(Chart(80), simulation)


def test_without_colour_there_is_no_escape():
    assert "\x1b" not in Chart(80).render(simulated("flood"))


def test_a_long_name_is_cut_in_its_lane():
    simulation = simulate(generate("steady", named("10/s")["sliding-window-counter 10/s"]), {"a" * 40: "10/s"})
    assert lines(Chart(80), simulation)[3].startswith("a" * 21 + "… ")


def test_times_since_the_epoch_are_shown_from_a_window_boundary_on(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("1700000007\n1700000013\n1700000032\n")
    rows = lines(Chart(80), simulate(read(str(path)), "fixed-window 1/10s"))
    assert rows[1] == "0 s is 1700000000 s after the epoch"
    assert rows[2].split() == ["7", "s", "10", "s", "20", "s", "30", "s"]


# Pictures


def test_an_svg_is_well_formed_and_the_same_every_time(tmp_path):
    paths = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for path in paths:
        plot.save(simulated("boundary"), str(path))
    assert ET.parse(paths[0]).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_png_is_a_png(tmp_path):
    path = tmp_path / "out.png"
    plot.save(simulated("flood", "10/10s"), str(path))
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_name_is_no_mathematics(tmp_path):
    traffic = Traffic("file", "the requests of 'a$\\b$'", [0], [1], 0, 1)
    plot.save(simulate(traffic, {"$user$ \\$": "10/s"}), str(tmp_path / "out.svg"))
    assert "a$\\b$" in (tmp_path / "out.svg").read_text()


def test_a_picture_has_a_lane_for_each_rule_and_a_line_for_each_rule():
    *lanes, rates = plot.figure(simulated("boundary")).axes
    assert [axes.get_ylabel().split("\n")[0] for axes in lanes] == [
        "fixed-window",
        "sliding-window-log",
        "sliding-window-counter",
        "token-bucket",
        "leaky-bucket",
        "leaky-bucket",
    ]
    assert [line.get_label() for line in rates.lines[:6]] == SIX.split("; ")
    assert rates.get_xlabel() == "time in seconds; the dotted lines are window boundaries, every 10 s"


def test_the_lines_of_a_picture_differ_by_more_than_colour():
    rates = plot.figure(simulated("boundary")).axes[-1]
    assert len({line.get_marker() for line in rates.lines[:6]}) == 6


def test_the_bars_of_a_lane_add_up_to_what_was_admitted_and_denied():
    lane = plot.figure(simulated("boundary")).axes[1]
    heights = [bar.get_height() for bar in lane.patches]
    assert sum(height for height in heights if height > 0) == 20
    assert sum(height for height in heights if height < 0) == -20


def test_a_line_shows_the_units_that_passed_per_second():
    fixed = plot.figure(simulated("boundary")).axes[-1].lines[0]
    by_second = dict(zip(fixed.get_xdata(), fixed.get_ydata(), strict=True))
    assert [by_second[second] for second in (8.5, 9.5, 10.5, 11.5)] == [0, 10, 10, 0]


def test_a_picture_of_times_since_the_epoch_says_so(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("1700000007\n1700000013\n")
    rates = plot.figure(simulate(read(str(path)), "fixed-window 1/10s")).axes[-1]
    assert rates.get_xlabel().startswith("time in seconds since 1700000000 s after the epoch;")
