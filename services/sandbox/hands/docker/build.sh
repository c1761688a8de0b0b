# Runs in the container that becomes an image: the number of packages, the packages, then commands, one an argument.
set -euo pipefail
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" HOME=/root
count=$1
packages=("${@:2:count}")
shift $((count + 1))

with_apt() {
  export DEBIAN_FRONTEND=noninteractive
  local sources
  sources=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true)
  if [ -z "$sources" ] && [ -d /run/handmesh-apt ]; then
    APT_CONFIG=$(mktemp) # read before all other configuration: sources, keys and proxies are the machine's own
    export APT_CONFIG
    echo 'Dir::Etc "/run/handmesh-apt";' >"$APT_CONFIG"
  fi
  apt-get -q update
  apt-get -q install -y --no-install-recommends -- "${packages[@]}"
  rm -rf /var/lib/apt/lists/* /var/cache/apt/* "${APT_CONFIG:-}"
  unset APT_CONFIG
}

if [ "$count" -gt 0 ]; then
  if command -v apt-get >/dev/null; then
    with_apt
  elif command -v apk >/dev/null; then
    apk add --no-cache -- "${packages[@]}"
  elif command -v dnf >/dev/null; then
    dnf install -y -- "${packages[@]}"
    dnf clean all
  else
    echo "packages need apt-get, apk or dnf in the image" >&2
    exit 1
  fi
fi
for command; do
  /bin/bash -euo pipefail -c "$command" </dev/null
done
