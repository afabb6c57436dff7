#!/bin/sh
# Writes the pf(4) rules of this host's installation of clawjail, and shows what /etc/pf.conf needs. It changes no rules.
set -eu

usage() {
	echo "usage: pf-anchor [-d DATA_DIR] [-p GATEWAY_PORT] [-t TEMPLATE] [-o FILE]" >&2
	exit 2
}

data=/var/db/clawjail
port=3000
template=/usr/local/share/examples/clawjail/clawjail.pf.conf
out=/usr/local/etc/clawjail/clawjail.pf.conf
while getopts d:p:t:o: option; do
	case $option in
	d) data=$OPTARG ;;
	p) port=$OPTARG ;;
	t) template=$OPTARG ;;
	o) out=$OPTARG ;;
	*) usage ;;
	esac
done
shift $((OPTIND - 1))
[ $# -eq 0 ] || usage

file=$data/installation.json
if [ ! -r "$file" ]; then
	echo "error: there is no $file" >&2
	echo "hint: start the host daemon once, which makes it, also when it then asks for these rules: service clawjail_hostd start" >&2
	exit 1
fi
id=$(sed -n 's/.*"id": *"\([a-z0-9]*\)".*/\1/p' "$file")
subnet=$(sed -n 's/.*"subnet": *"\([0-9.]*\)\/[0-9]*".*/\1/p' "$file")
case $id in
[a-z0-9][a-z0-9][a-z0-9][a-z0-9]) ;;
*) echo "error: $file has no id" >&2; exit 1 ;;
esac
case $subnet in
*.*.*.0) gateway=${subnet%.0}.1 ;;
*) echo "error: $file has no subnet that ends with .0" >&2; exit 1 ;;
esac
case $port in
'' | *[!0-9]*) usage ;;
esac

new=$out.new
umask 022
sed -e "s/^bridge = .*/bridge = \"cj$id\"/" -e "s/^gateway = .*/gateway = \"$gateway\"/" -e "s/^port = .*/port = \"$port\"/" \
	-e "s/k3x9/$id/g" "$template" >"$new"
mv "$new" "$out"
cat <<END
wrote $out
Put these two lines into /etc/pf.conf, before every other filter rule, and load it with: service pf reload

anchor "clawjail/*"
load anchor "clawjail/$id" from "$out"
END
