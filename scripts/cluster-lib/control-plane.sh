#!/usr/bin/env bash
# Part of scripts/cluster: etcd, the API server, the controller manager and the scheduler, all on
# 127.0.0.1. Sourced, never run.

# The service address of the API server; each node redirects it to the real one.
SERVICE_NET=10.96.0.0/16
SERVICE_API=10.96.0.1

# kubectl's cache.
kubectl() {
  KUBECACHEDIR=$DIR/kubectl "$KUBE_BIN/kubectl" --kubeconfig "$DIR/kubeconfig" "$@"
}

# certificate FILE SUBJECT EXTENSION…: makes a key and a certificate, signed by the cluster's CA.
certificate() {
  local file=$DIR/certs/$1 subject=$2
  shift 2
  openssl ecparam -genkey -name prime256v1 -noout -out "$file.key"
  openssl req -new -key "$file.key" -subj "$subject" 2>/dev/null |
    openssl x509 -req -CA "$DIR/certs/ca.crt" -CAkey "$DIR/certs/ca.key" -days 365 \
      -set_serial "0x$(openssl rand -hex 8)" -extfile <(printf '%s\n' "$@") -out "$file.crt" \
      2>/dev/null
}

certificates() {
  local certs=$DIR/certs addresses="IP:127.0.0.1,IP:$SERVICE_API"
  openssl ecparam -genkey -name prime256v1 -noout -out "$certs/ca.key"
  openssl req -x509 -new -key "$certs/ca.key" -subj "/CN=$NAME" -days 365 \
    -addext keyUsage=critical,keyCertSign,digitalSignature -out "$certs/ca.crt"
  certificate apiserver /CN=kube-apiserver extendedKeyUsage=serverAuth \
    "subjectAltName=$addresses,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
  # The client certificate of the API server for kubelets.
  certificate apiserver-kubelet /O=system:masters/CN=kube-apiserver extendedKeyUsage=clientAuth
  openssl ecparam -genkey -name prime256v1 -noout -out "$certs/service-account.key"
}

# credential FILE USER [GROUP]: makes a token for USER and a kubeconfig with it.
credential() {
  local token
  token=$(openssl rand -hex 16)
  echo "$token,$2,$2${3:+,\"$3\"}" >>"$DIR/certs/tokens.csv"
  cat >"$DIR/$1" <<EOF
apiVersion: v1
kind: Config
clusters:
  - name: $NAME
    cluster:
      server: https://127.0.0.1:$PORT
      certificate-authority-data: $(base64 -w0 <"$DIR/certs/ca.crt")
users: [{name: $NAME, user: {token: "$token"}}]
contexts: [{name: $NAME, context: {cluster: $NAME, user: $NAME}}]
current-context: $NAME
EOF
}

# The API server reads the token file only at start, so it must have the nodes' tokens.
credentials() {
  local i
  : >"$DIR/certs/tokens.csv"
  credential kubeconfig admin system:masters
  credential certs/controller-manager.kubeconfig system:kube-controller-manager
  credential certs/scheduler.kubeconfig system:kube-scheduler
  for i in $(seq "$NODES"); do
    credential "certs/kubelet-$i.kubeconfig" "system:node:$(node_name "$i")" system:nodes
  done
}

# Logs each request when it is answered, and a watch also when it begins.
audit_policy() {
  cat >"$DIR/audit-policy.yaml" <<EOF
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules: [{level: Metadata}]
EOF
}

start_etcd() {
  # No fsync: a test cluster's data need not survive a power failure. By default, etcd takes 2 GiB, which
  # an attack with large objects uses up before the next compaction.
  start_process etcd "$ETCD" --name "$NAME" --unsafe-no-fsync --data-dir "$DIR/etcd" \
    --log-level warn --quota-backend-bytes $((8 << 30)) \
    --listen-client-urls "http://127.0.0.1:$((PORT + 1))" \
    --advertise-client-urls "http://127.0.0.1:$((PORT + 1))" \
    --listen-peer-urls "http://127.0.0.1:$((PORT + 2))" \
    --initial-advertise-peer-urls "http://127.0.0.1:$((PORT + 2))" \
    --initial-cluster "$NAME=http://127.0.0.1:$((PORT + 2))"
  wait_for etcd 300 "etcd" etcd_answers
}

etcd_answers() { (exec 3<>"/dev/tcp/127.0.0.1/$((PORT + 1))"); }

start_apiserver() {
  local certs=$DIR/certs
  # The service `kubernetes` has no endpoints: nodes redirect its address here.
  start_process apiserver "$KUBE_BIN/kube-apiserver" \
    --etcd-servers "http://127.0.0.1:$((PORT + 1))" --bind-address 127.0.0.1 \
    --secure-port "$PORT" --advertise-address 127.0.0.1 --endpoint-reconciler-type none \
    --tls-cert-file "$certs/apiserver.crt" --tls-private-key-file "$certs/apiserver.key" \
    --cert-dir "$certs" --token-auth-file "$certs/tokens.csv" \
    --kubelet-client-certificate "$certs/apiserver-kubelet.crt" \
    --kubelet-client-key "$certs/apiserver-kubelet.key" \
    --kubelet-preferred-address-types InternalIP \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --allow-privileged=true --service-cluster-ip-range "$SERVICE_NET" \
    --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file "$certs/service-account.key" \
    --service-account-signing-key-file "$certs/service-account.key" \
    --audit-policy-file "$DIR/audit-policy.yaml" --audit-log-path "$DIR/log/audit.log" \
    --audit-log-maxsize 4000 ${WITHOUT:+"--runtime-config=$WITHOUT=false"} \
    ${FEATURE_GATES:+"--feature-gates=$FEATURE_GATES"}
  wait_for apiserver 300 "the API server" kubectl get --raw /readyz
}

start_controller_manager() {
  local limits=()
  [ -z "$FAST" ] || limits=(--kube-api-qps 500 --kube-api-burst 1000)
  start_process controller-manager "$KUBE_BIN/kube-controller-manager" \
    --kubeconfig "$DIR/certs/controller-manager.kubeconfig" --leader-elect=false \
    --use-service-account-credentials --root-ca-file "$DIR/certs/ca.crt" \
    --service-account-private-key-file "$DIR/certs/service-account.key" \
    --bind-address 127.0.0.1 --secure-port $((PORT + 3)) --cert-dir "$DIR/certs" \
    --flex-volume-plugin-dir "$DIR/volume-plugins" "${limits[@]}"
  # Pods need this object, which the controller manager makes first.
  wait_for controller-manager 300 "the default service account" kubectl get serviceaccount default
}

start_scheduler() {
  local limits=()
  [ -z "$FAST" ] || limits=(--kube-api-qps 500 --kube-api-burst 1000)
  start_process scheduler "$KUBE_BIN/kube-scheduler" \
    --kubeconfig "$DIR/certs/scheduler.kubeconfig" --leader-elect=false --bind-address 127.0.0.1 \
    --secure-port $((PORT + 4)) --cert-dir "$DIR/certs" "${limits[@]}"
}
