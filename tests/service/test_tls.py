"""TLS: what is refused at the start, what clients get, and how a certificate is renewed."""

import contextlib
import datetime as dt
import signal
import ssl

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from ratekeeper.cli import main
from tests.servers import free_port
from tests.service.serving import Served
from tests.waiters import until


def write(directory, authority, **options):
    """Write a certificate and its key; return the options of the command that name them."""
    issued = authority.issue_cert("localhost", **options)
    chain, key = directory / "cert.pem", directory / "key.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return "--tls-cert", str(chain), "--tls-key", str(key)


def trusting(authority):
    """Return a context for clients that trust this authority only."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def serve(authority):
    """Start services with TLS, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*options, **more):
            def client(served):
                return httpx.Client(base_url=f"https://localhost:{served.port}", verify=trusting(authority))

            served = Served(None, *options, client=client, **more)
            stack.callback(served.stop)
            return served

        yield start


@pytest.mark.parametrize("key_type", trustme.KeyType)
def test_clients_that_trust_the_certificate_are_answered(serve, tmp_path, authority, key_type):
    served = serve(*write(tmp_path, authority, key_type=key_type))
    assert served.said == f"Listening on https://127.0.0.1:{served.port}/ (press Ctrl-C to stop)\n"
    assert served.ask("POST", "/v1/hit", json={"key": "ada", "rule": "1/day"}).json()["allowed"]
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(f"https://localhost:{served.port}/healthz")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{served.port}/healthz")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_certificate_is_renewed_by_a_signal_and_nobody_is_refused(serve, tmp_path, authority, workers):
    served = serve(*write(tmp_path, authority), "--workers", workers)
    later = trustme.CA()

    def answers(trusted):
        with contextlib.suppress(httpx.ConnectError):
            return httpx.get(f"https://localhost:{served.port}/healthz", verify=trusting(trusted)).status_code == 200
        return False

    write(tmp_path, later)
    assert answers(authority)
    served.process.send_signal(signal.SIGHUP)
    until(lambda: all(answers(later) for _ in range(8)), "all workers have the new certificate")
    assert not answers(authority)
    served.stop()
    assert served.errors == ""


def test_a_new_certificate_that_is_wrong_changes_nothing(serve, tmp_path, authority):
    served = serve(*write(tmp_path, authority))
    (tmp_path / "key.pem").write_text("nonsense")
    served.process.send_signal(signal.SIGHUP)
    said = served.process.stderr.readline()
    assert said.startswith(
        f"could not reload: {tmp_path}/cert.pem and {tmp_path}/key.pem must be a certificate and its key"
    )
    assert served.ask("GET", "/healthz").status_code == 200
    assert httpx.get(f"https://localhost:{served.port}/healthz", verify=trusting(authority)).status_code == 200


def fail(capsys, *options):
    assert main(["serve", "--port", str(free_port()), *options]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("from_now", "until_then", "said"),
    [(-2, -1, "certificate has expired"), (1, 2, "certificate is not yet valid")],
)
def test_a_certificate_out_of_its_time_is_refused(capsys, tmp_path, authority, from_now, until_then, said):
    now = dt.datetime.now(dt.timezone.utc)
    days = dt.timedelta(days=1)
    options = write(tmp_path, authority, not_before=now + from_now * days, not_after=now + until_then * days)
    assert (
        fail(capsys, *options) == f"ratekeeper serve: clients refuse the certificate in {tmp_path}/cert.pem: {said}\n"
    )


def test_the_key_of_another_certificate_is_refused(capsys, tmp_path, authority):
    options = write(tmp_path, authority)
    (tmp_path / "key.pem").write_bytes(authority.issue_cert("other").private_key_pem.bytes())
    assert fail(capsys, *options) == (
        f"ratekeeper serve: the key in {tmp_path}/key.pem does not belong to the certificate in {tmp_path}/cert.pem\n"
    )


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(capsys, tmp_path, authority):
    options = write(tmp_path, authority)
    key = tmp_path / "key.pem"
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(plain.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    assert fail(capsys, *options).startswith(f"ratekeeper serve: the key in {tmp_path}/key.pem is encrypted; ")


def test_one_without_the_other_is_refused(capsys, tmp_path, authority):
    options = write(tmp_path, authority)
    for half in (options[:2], options[2:]):
        assert fail(capsys, *half) == "ratekeeper serve: --tls-cert and --tls-key belong together; give both\n"


@pytest.mark.parametrize("missing", ["cert.pem", "key.pem"])
def test_a_file_that_cannot_be_read_is_named(capsys, tmp_path, authority, missing):
    options = write(tmp_path, authority)
    (tmp_path / missing).unlink()
    assert fail(capsys, *options) == f"ratekeeper serve: cannot read {tmp_path}/{missing}: No such file or directory\n"
