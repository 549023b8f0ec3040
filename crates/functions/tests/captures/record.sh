#!/usr/bin/env bash
# Records the captures of this directory anew: real clients and servers in network namespaces, and tcpdump
# between them.
#
#   record.sh DIRECTORY [NAME…]    all captures, or those of these names
#
# Exit 77: no root, or a program is missing (README.md says which).
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: record.sh DIRECTORY [NAME…]" >&2; exit 2; }
mkdir -p "$1"
to=$(cd "$1" && pwd)
shift
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" -eq 0 ] || { echo "record: only root can make network namespaces" >&2; exit 77; }
for program in ip nft ethtool tcpdump curl wrk nginx python3 dig dnsmasq ssh sshd ssh-keygen openssl nc \
  redis-server redis-cli tnftp ping git; do
  command -v "$program" > /dev/null || { echo "record: $program is missing" >&2; exit 77; }
done
# pyftpdlib is Debian's, for Debian's Python.
python=/usr/bin/python3
"$python" -c 'import pyftpdlib' 2> /dev/null || { echo "record: python3-pyftpdlib is missing" >&2; exit 77; }

scratch=$(mktemp -d /tmp/holdfast-captures.XXXXXX)
chmod 755 "$scratch"
# Clients, what is between, servers.
client=hfcap-c-$$ between=hfcap-b-$$ server=hfcap-s-$$
processes=()
finish() {
  local process
  for process in "${processes[@]}"; do kill "$process" 2> /dev/null || true; done
  wait 2> /dev/null || true
  for space in "$client" "$between" "$server"; do ip netns del "$space" 2> /dev/null || true; done
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 1' INT TERM

for space in "$client" "$between" "$server"; do
  ip netns add "$space"
  ip -n "$space" link set lo up
done
join() { # NAMESPACE DEVICE: a link from there to the namespace between, as DEVICE there, too.
  ip link add "$2" netns "$1" type veth peer name "$2" netns "$between"
  for space in "$1" "$between"; do
    # Segments as they are on a wire, with checksums.
    ip netns exec "$space" ethtool -K "$2" tx off rx off gso off tso off gro off > /dev/null 2>&1
    ip -n "$space" link set "$2" up
  done
}
join "$client" left
join "$server" right
ip netns exec "$between" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
address() { ip -n "$1" addr add "$2" dev "$3" ${4:-}; }
address "$client" 10.77.1.2/24 left
address "$client" fd77:1::2/64 left nodad
address "$between" 10.77.1.1/24 left
address "$between" fd77:1::1/64 left nodad
address "$between" 10.77.2.1/24 right
address "$between" fd77:2::1/64 right nodad
address "$server" 10.77.2.2/24 right
address "$server" fd77:2::2/64 right nodad
for end in "$client 10.77.1.1 fd77:1::1" "$server 10.77.2.1 fd77:2::1"; do
  read -r space v4 v6 <<< "$end"
  ip -n "$space" route add default via "$v4"
  ip -n "$space" -6 route add default via "$v6"
done
at=10.77.2.2

on_client() { ip netns exec "$client" "$@"; }
# Asks again until a command succeeds; gives up after twenty seconds.
until_ok() {
  local limit=$((SECONDS + 20))
  until "$@"; do
    [ "$SECONDS" -lt "$limit" ] || { echo "record: in vain: $*" >&2; return 1; }
  done
}
listens() { [ -n "$(ip netns exec "$server" ss -Htuln "sport = :$1")" ]; }
serve() { # PORT COMMAND…: starts a server, and waits until it listens.
  local port=$1
  shift
  ip netns exec "$server" "$@" > "$scratch/server.log" 2>&1 < /dev/null &
  processes+=($!)
  until_ok listens "$port" || { cat "$scratch/server.log" >&2; exit 1; }
}

mkdir "$scratch/www"
printf 'a small page\n' > "$scratch/www/index.html"
printf 'root:x:0:0:root:/root:/bin/bash\n' > "$scratch/www/passwd"
# Text without a pattern, 100,000 bytes, with a mark at its end and one in its middle.
text() { "$python" -c "import sys; print(''.join('line %06d of the text\n' % n for n in range($1)), end='')"; }
{ text 1800; printf 'MIDDLE-MARK\n'; text 2000; printf 'THE-LAST-MARK\n'; } > "$scratch/www/large.txt"
{ text 1500; printf 'secret=0123456789abcdef\n'; text 200; } > "$scratch/upload.txt"

cat > "$scratch/nginx.conf" << END
daemon off; master_process off; pid $scratch/nginx.pid; error_log /dev/null; user root;
events { worker_connections 64; }
http {
  access_log off; keepalive_requests 100000; client_body_temp_path $scratch/body;
  types { text/html html; text/plain txt; }
  server { listen 80; listen [::]:80; root $scratch/www; location /post { return 200 "taken\n"; } }
}
END
cat > "$scratch/slow.py" << 'END'
# A server that answers in chunks, and a client that sends its requests in small pieces.
import http.client, http.server, socket, sys
class Chunks(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *words): pass
    def do_GET(self):
        self.send_response(200)
        self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        for piece in (b'in the first chunk: for', b'bidden across a chunk border', b', and forbidden inside\n'):
            self.wfile.write(b'%x\r\n%s\r\n' % (len(piece), piece))
        self.wfile.write(b'0\r\n\r\n')
    def do_POST(self):
        while True:
            size = int(self.rfile.readline(), 16)
            self.rfile.read(size + 2)
            if size == 0: break
        self.send_response(204)
        self.end_headers()
if sys.argv[1] == 'serve':
    http.server.ThreadingHTTPServer(('0.0.0.0', 8000), Chunks).serve_forever()
elif sys.argv[1] == 'pieces':
    to = socket.create_connection((sys.argv[2], 8000))
    to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b'GET /cgi-bin/passwd?id=123456 HTTP/1.1\r\nHost: a\r\nUser-Agent: pieces\r\n\r\n':
        to.sendall(bytes([byte]))
    to.recv(4096)
    to.close()
else:
    to = http.client.HTTPConnection(sys.argv[2], 8000)
    for path in ('/one', '/two?cmd=cat+/etc/passwd', '/three'):
        to.request('GET', path, headers={'X-Powered-By': 'python', 'Cookie': 'SESSIONID=00ff'})
        to.getresponse().read()
    to.close()
END
cat > "$scratch/talker.py" << 'END'
# Servers that say as little as their clients need: SMTP, POP3, IMAP, RTSP, MQTT, Telnet.
import socketserver, sys
def lines(handler, greeting, answer):
    handler.wfile.write(greeting)
    for line in handler.rfile:
        said = answer(line.strip().decode())
        if said is None: return
        handler.wfile.write(said)
class Talker(socketserver.StreamRequestHandler):
    def handle(self): servers[self.server.server_address[1]](self)
def smtp(handler):
    data = [False]
    def answer(line):
        if data[0]:
            data[0] = line != '.'
            return b'' if data[0] else b'250 2.0.0 taken\r\n'
        data[0] = line == 'DATA'
        word = line.split(' ')[0].upper()
        return {'DATA': b'354 go on\r\n', 'QUIT': b'221 2.0.0 bye\r\n'}.get(word, b'250 mail.captures.example\r\n')
    lines(handler, b'220 mail.captures.example ESMTP Postfix\r\n', answer)
def pop(handler):
    answers = {'CAPA': b'+OK\r\nUSER\r\n.\r\n', 'LIST': b'+OK 1 message\r\n1 120\r\n.\r\n'}
    lines(handler, b'+OK POP3 server ready\r\n', lambda line: answers.get(line.split(' ')[0], b'+OK\r\n'))
def imap(handler):
    def answer(line):
        tag, word = line.split(' ')[:2]
        also = {'CAPABILITY': '* CAPABILITY IMAP4rev1\r\n', 'LIST': '* LIST () "/" INBOX\r\n', 'LOGOUT': '* BYE\r\n'}
        return f'{also.get(word, "")}{tag} OK {word} completed\r\n'.encode()
    lines(handler, b'* OK [CAPABILITY IMAP4rev1] ready\r\n', answer)
def rtsp(handler):
    for line in handler.rfile:
        if line.startswith(b'CSeq'): number = line.strip()
        if line == b'\r\n':
            handler.wfile.write(b'RTSP/1.0 200 OK\r\n' + number + b'\r\nPublic: OPTIONS, DESCRIBE\r\n\r\n')
def mqtt(handler):
    while kind := handler.rfile.read(1):
        body = handler.rfile.read(handler.rfile.read(1)[0])
        if kind[0] == 0x10: handler.wfile.write(b'\x20\2\0\0')
        elif kind[0] == 0x30: return
def telnet(handler):
    handler.wfile.write(b'\xff\xfd\x18\xff\xfd\x20\xff\xfb\x01\xff\xfb\x03')
    handler.connection.recv(64)
    handler.wfile.write(b'login: ')
    # The answer may have come with the negotiation.
    handler.connection.settimeout(1)
    handler.connection.recv(64)
servers = {25: smtp, 110: pop, 143: imap, 554: rtsp, 1883: mqtt, 23: telnet}
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(('0.0.0.0', int(sys.argv[1])), Talker).serve_forever()
END
cat > "$scratch/ftp.py" << END
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
authorizer = DummyAuthorizer()
authorizer.add_user('user', 'hunter2', '$scratch/www', perm='elradfmw')
FTPHandler.authorizer = authorizer
FTPServer(('0.0.0.0', 21), FTPHandler).serve_forever()
END
ssh-keygen -q -t ed25519 -N '' -f "$scratch/host"
ssh-keygen -q -t ed25519 -N '' -f "$scratch/key"
cat > "$scratch/sshd.conf" << END
HostKey $scratch/host
AuthorizedKeysFile $scratch/key.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin prohibit-password
END
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=captures.example \
  -keyout "$scratch/tls.key" -out "$scratch/tls.pem" 2> /dev/null
mkdir -p /run/sshd

serve 80 nginx -c "$scratch/nginx.conf"
serve 8000 "$python" "$scratch/slow.py" serve
serve 53 dnsmasq -k -C /dev/null -R -h -p 53 -u root --log-facility=- --address=/captures.example/192.0.2.7 \
  --txt-record=text.captures.example,"a text of forbidden words" --local=/example/ \
  --enable-tftp --tftp-root="$scratch/www"
serve 22 "$(command -v sshd)" -D -e -f "$scratch/sshd.conf"
serve 21 "$python" "$scratch/ftp.py"
serve 4433 openssl s_server -quiet -www -accept 4433 -key "$scratch/tls.key" -cert "$scratch/tls.pem"
serve 6379 redis-server --port 6379 --bind 0.0.0.0 --protected-mode no --save '' --daemonize no
for port in 25 110 143 554 1883 23; do serve "$port" "$python" "$scratch/talker.py" "$port"; done
git init -q --bare "$scratch/source.git"
serve 9418 git daemon --export-all --base-path="$scratch" "$scratch"
serve 9 nc -k -u -l -p 9

# One function for each capture, of its name with _ for -.
get() {
  on_client curl -s "http://$at/" "http://$at/passwd" "http://$at/nothing?id=1%20UNION%20SELECT" -o /dev/null -o /dev/null -o /dev/null
  on_client curl -sI -A 'sqlmap/1.0' "http://$at/" > /dev/null
}
get_ipv6() { on_client curl -s -A 'sqlmap/1.0' "http://[fd77:2::2]/passwd" > /dev/null; }
pipelined() {
  printf 'GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /passwd HTTP/1.1\r\nHost: a\r\n\r\nGET /../etc/passwd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n' |
    on_client nc "$at" 80 > /dev/null
}
chunked() {
  on_client curl -s "http://$at:8000/chunks" > /dev/null
  on_client curl -s -H 'Transfer-Encoding: chunked' -d 'cmd=forbidden' "http://$at:8000/post"
}
large() { on_client curl -s "http://$at/large.txt" > /dev/null; }
upload() { on_client curl -s -F "file=@$scratch/upload.txt" "http://$at/post" > /dev/null; }
# One of thirteen of the upload's segments is lost between the namespaces: behind the place of the capture,
# which sees the retransmission too, or before it.
lossy() {
  ip netns exec "$between" nft 'add table ip loss; add chain ip loss forward { type filter hook forward priority 0; };
    add rule ip loss forward iifname left ip length > 500 numgen inc mod 13 == 5 drop'
  upload
  ip netns exec "$between" nft delete table ip loss
}
mail() {
  printf 'From: a\r\nTo: b\r\n\r\nA letter.\r\n' > "$scratch/letter"
  on_client curl -s --mail-from a@captures.example --mail-rcpt b@captures.example -T "$scratch/letter" "smtp://$at"
  on_client curl -s -u user:hunter2 "pop3://$at/" > /dev/null
  on_client curl -s -u user:hunter2 "imap://$at/" > /dev/null
}
things() {
  on_client curl -s -X OPTIONS "rtsp://$at/" > /dev/null || true
  on_client curl -s -d 21 "mqtt://$at/heat" || true
  on_client curl -s "tftp://$at/index.html" > /dev/null
}
terminal() { printf 'user\r\n' | on_client curl -s "telnet://$at" > /dev/null || true; }
sources() { on_client git ls-remote "git://$at/source.git" > /dev/null; }
lost_behind() { lossy; }
lost_before() { lossy; }
keep_alive() { on_client wrk -t1 -c2 -d1 -H 'X-Powered-By: wrk' "http://$at/" > /dev/null; }
pieces() { on_client "$python" "$scratch/slow.py" pieces "$at"; }
python_http() { on_client "$python" "$scratch/slow.py" requests "$at"; }
names() {
  local name
  for name in captures.example www.captures.example a-rather-long-name-with-forbidden-words-in-it.captures.example; do
    on_client dig +tries=1 "@$at" "$name" > /dev/null
  done
  on_client dig +tries=1 +tcp "@$at" text.captures.example TXT > /dev/null
}
shell() {
  on_client ssh -F none -i "$scratch/key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
    "root@$at" 'echo forbidden' > /dev/null
}
files() {
  printf 'open %s\nuser user hunter2\npassive on\nls\nget passwd %s/got\nquit\n' "$at" "$scratch" |
    on_client tnftp -n -v > /dev/null
}
datagrams() {
  local text
  for text in 'a first datagram' 'for' 'bidden' 'a forbidden one' 'id=123456789012'; do
    printf '%s' "$text" | on_client nc -u -q 0 -p 5000 "$at" 9
  done
}
tls() {
  printf 'GET / HTTP/1.0\r\n\r\n' |
    on_client openssl s_client -connect "$at:4433" -servername captures.example -quiet 2> /dev/null > /dev/null || true
}
redis() {
  on_client redis-cli -h "$at" SET word forbidden > /dev/null
  on_client redis-cli -h "$at" GET word > /dev/null
  printf 'SET a 1\r\nGET a\r\nCONFIG GET dir\r\nFLUSHALL\r\n' | on_client redis-cli -h "$at" --pipe > /dev/null || true
}
echoes() {
  on_client ping -q -c 2 -i 0.2 -p 666f7262696464656e "$at" > /dev/null
  on_client ping -q -c 2 -i 0.2 "$at" > /dev/null
}

# No connection is open: each has had its last acknowledgement.
is_over() {
  local space
  for space in "$client" "$server"; do
    [ -z "$(ip netns exec "$space" ss -Htn state connected exclude time-wait)" ] || return 1
  done
}
# The last packets of a capture, which are not kept: an echo request behind all others, by its type of service.
readonly mark=the-end-of-it mark_tos=4
end_with_mark() {
  on_client ping -q -c 1 -Q "$mark_tos" -p "$(printf '%s' "$mark" | od -An -tx1 | tr -d ' \n')" "$at" > /dev/null
}

record() {
  local name=$1 device=$2 count=${3:-} watch said line what=${1//-/_} raw=$scratch/raw.pcap
  rm -f "$scratch/said"
  mkfifo "$scratch/said"
  # Only the captured connections; of a flood of requests the first packets.
  ip netns exec "$between" tcpdump -i "$device" -s 0 -U -n --immediate-mode ${count:+-c "$count"} -w "$raw" \
    'not arp and not (icmp6 and ip6[40] >= 130)' 2> "$scratch/said" &
  watch=$!
  exec {said}< "$scratch/said"
  until [[ ${line:-} == *'listening on'* ]]; do read -r line <&"$said"; done
  "$what"
  if [ -z "$count" ]; then
    until_ok is_over
    end_with_mark
    until_ok grep -qa "$mark" "$raw"
    kill -INT "$watch"
  fi
  wait "$watch" || true
  exec {said}<&-
  tcpdump -r "$raw" -w "$to/$name.pcap" "not (icmp and ip[1] = $mark_tos)" 2> /dev/null
  printf '%-14s %7d bytes\n' "$name" "$(stat -c %s "$to/$name.pcap")"
}

all=(get get-ipv6 pipelined chunked large upload lost-behind lost-before keep-alive pieces python-http names shell files
  datagrams tls redis echoes mail things terminal sources)
[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do
  case $name in
    keep-alive) record "$name" left 120 ;;
    lost-before) record "$name" right ;;
    *) record "$name" left ;;
  esac
done
