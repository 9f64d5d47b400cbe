"""`adamctl launch k8s`: a run on Kubernetes. One Job holds the front, an Indexed Job the host agents."""

from __future__ import annotations

import re
from textwrap import indent

from adamctl.launch.scripts.wanted import Wanted

GRACE_S = 60
"""Seconds that a pod may take to end: parameters are moved away, or the last checkpoint is written."""
FRONT_PORT = 7069
_RUN_DIR, _DATA = "/runs", "/data"


def kubernetes_description(wanted: Wanted, text: str, image: str) -> str:
    """Returns the objects as YAML; `text` is the experiment file's."""
    name = dns_label(f"adamctl-{wanted.name}")
    parts = (_experiment(wanted, text, name), _service(name), _front(wanted, image, name), _agents(wanted, image, name))
    return "---\n".join(parts)


def _experiment(wanted: Wanted, text: str, name: str) -> str:
    tls = (
        "Nothing is encrypted between the pods."
        if wanted.insecure
        else "The image has adamctl[tls]: pods speak TLS with each other."
    )
    return f"""# Trains {wanted.experiment} on {wanted.most} pods. Apply it with: kubectl apply -f THIS_FILE
# First make the run's secret, which no file holds:
#   kubectl create secret generic {name}-token --from-literal=token="$(openssl rand -base64 32)"
# and a volume for what the run writes, as the claim {name}-runs. Data lie in {_DATA} of the image, or of a volume
# that you add to the front and the agents. {tls}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
  experiment.toml: |
{indent(text.rstrip(), "    ", lambda line: line.strip() != "")}
"""


def _service(name: str) -> str:
    return f"""# Headless: agents find the front by name, wherever its pod is.
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{app: {name}, part: front}}
  ports:
    - {{name: front, port: {FRONT_PORT}}}
"""


def _front(wanted: Wanted, image: str, name: str) -> str:
    flags = ", ".join(f'"{flag}"' for flag in wanted.flags.split())
    cores = f', "--cores", "{wanted.cores}"' if wanted.cores else ""
    return f"""apiVersion: batch/v1
kind: Job
metadata:
  name: {name}-front
spec:
  backoffLimit: 3
{_deadline(wanted)}  template:
    metadata:
      labels: {{app: {name}, part: front}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: {GRACE_S}
      containers:
        - name: front
          image: {image}
          command: ["adamctl", "train", "/experiment/experiment.toml", "--on", "agents",
                    {flags}{cores}, "--port", "{FRONT_PORT}",
                    "--run-dir", "{_RUN_DIR}", "--resume", "auto", "--plain"]
          env:
            - {{name: ADAMCTL_DATA, value: {_DATA}}}
            - name: ADAMCTL_TOKEN
              valueFrom: {{secretKeyRef: {{name: {name}-token, key: token}}}}
          ports:
            - {{containerPort: {FRONT_PORT}}}
          securityContext: {{allowPrivilegeEscalation: false, runAsNonRoot: true}}
          volumeMounts:
            - {{name: experiment, mountPath: /experiment, readOnly: true}}
            - {{name: runs, mountPath: {_RUN_DIR}}}
      volumes:
        - {{name: experiment, configMap: {{name: {name}}}}}
        - {{name: runs, persistentVolumeClaim: {{claimName: {name}-runs}}}}
"""


def _agents(wanted: Wanted, image: str, name: str) -> str:
    insecure = ', "--insecure"' if wanted.insecure else ""
    resources = (
        f'          resources: {{requests: {{cpu: "{wanted.cores}"}}, limits: {{cpu: "{wanted.cores}"}}}}\n'
        if wanted.cores
        else ""
    )
    return f"""# A pod that is lost is replaced by one of another name, which is another host of the run.
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}-agents
spec:
  completionMode: Indexed
  completions: {wanted.most}
  parallelism: {wanted.most}
  backoffLimit: {10 * wanted.most}
{_deadline(wanted)}  template:
    metadata:
      labels: {{app: {name}, part: agent}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: {GRACE_S}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {{matchLabels: {{app: {name}, part: agent}}}}
      containers:
        - name: agent
          image: {image}
          command: ["adamctl", "host", "start", "--front", "{name}:{FRONT_PORT}", "--name", "$(POD_NAME)",
                    "--data-root", "{_DATA}", "--checkpoint-root", "{_RUN_DIR}"{insecure}]
          env:
            - {{name: ADAMCTL_DATA, value: {_DATA}}}
            - name: POD_NAME
              valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}
            - name: ADAMCTL_TOKEN
              valueFrom: {{secretKeyRef: {{name: {name}-token, key: token}}}}
{resources}          securityContext: {{allowPrivilegeEscalation: false, runAsNonRoot: true}}
          volumeMounts:
            - {{name: memory, mountPath: /dev/shm}}
      volumes:
        # Roles of one pod share memory; a container's own /dev/shm has 64 MiB.
        - {{name: memory, emptyDir: {{medium: Memory}}}}
"""


def _deadline(wanted: Wanted) -> str:
    return f"  activeDeadlineSeconds: {round(wanted.time_s)}\n" if wanted.time_s else ""


def dns_label(name: str) -> str:
    """Returns text as the name of an object of Kubernetes: lower case, digits and dashes, at most 50 characters."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:50].strip("-")
