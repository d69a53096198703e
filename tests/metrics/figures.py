"""Reads what a page of metrics says, with the parser of prometheus-client."""

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

ORDER = ("policy", "protocol", "rule", "outcome", "result", "le")


class Page:
    """The samples of a page, by name and labels."""

    def __init__(self, text):
        self.samples = defaultdict(dict)
        self.kinds = {}
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            for sample in family.samples if family.name.startswith("ratekeeper_") else ():
                series = tuple(sample.labels[label] for label in ORDER if label in sample.labels)
                assert series not in self.samples[sample.name], f"{sample.name}{series} is there twice"
                self.samples[sample.name][series] = sample.value

    def of(self, name):
        """Return the samples of a name, by the values of their labels; plain if there are no labels."""
        found = dict(self.samples.get(name, {}))
        return found.get(()) if set(found) <= {()} else found

    @property
    def decisions(self):
        """The decisions by (policy, rule, outcome)."""
        return self.of("ratekeeper_decisions_total") or {}
