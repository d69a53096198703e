#!/bin/sh
# more_servers.sh DIRECTORY RELEASE NAME...: unpack servers of a later Debian, such as trixie redis valkey, for the
# tests. It needs Debian on x86-64, or Ubuntu with debian-archive-keyring, and installs nothing: the servers run with
# the libraries of their release.
set -eu
directory=$1/$2
release=$2
shift 2
if [ -e "$directory/.complete" ]; then exit 0; fi
keys=/usr/share/keyrings/debian-archive-keyring.gpg
if ! [ -e $keys ] || ! command -v apt-get >/dev/null || [ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ]; then
    echo "the servers of Debian's $release are left out: this is no Debian on x86-64" >&2
    exit 0
fi
rm -rf "$directory"
mkdir -p "$directory/apt/lists/partial" "$directory/apt/archives/partial" "$directory/bin" "$directory/files"
root=$(cd "$directory" && pwd)

packages="libc6 libatomic1 libcap2 libgcc-s1 libjemalloc2 liblzf1 libssl3t64 libstdc++6 libsystemd0 libzstd1 zlib1g"
for name; do packages="$packages $name-server $name-tools"; done
echo "deb [signed-by=$keys] http://deb.debian.org/debian $release main" \
    >"$root/apt/sources.list"
apt() {
    apt-get -qq -o "Dir::Etc::SourceList=$root/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o "Dir::State::Lists=$root/apt/lists" -o Dir::State::Status=/dev/null -o "Dir::Cache=$root/apt" \
        -o APT::Sandbox::User=root "$@"
}
apt update
cd "$root/apt/archives"
# shellcheck disable=SC2086  # a list of words
apt download $packages
for package in ./*.deb; do dpkg -x "$package" "$root/files"; done
cd "$root"
rm -rf apt

for name; do
    cat >"bin/$name-server" <<END
#!/bin/sh
files=\$(dirname "\$0")/../files
lib=\$files/usr/lib/x86_64-linux-gnu
exec "\$lib/ld-linux-x86-64.so.2" --library-path "\$lib" "\$files/usr/bin/$name-server" "\$@"
END
    chmod +x "bin/$name-server"
    "bin/$name-server" --version
done
touch .complete
