#!/bin/bash
#SBATCH --job-name=bakeoff
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=1
#SBATCH --time=04:00:00
# A run on the nodes of a Slurm cluster: sbatch docker/slurm.sh --preset zoo --devices cuda --out results/zoo
# Submit it in a folder that all nodes see, with an environment active in which Bakeoff is installed, and which they see,
# too. To go on after a time limit:
# sbatch docker/slurm.sh resume results/zoo
set -euo pipefail

export RAY_USAGE_STATS_ENABLED=0
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
port=$((20000 + SLURM_JOB_ID % 20000))
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{ print $1 }'):$port

# A head of its own measures nothing. Every node, the first one too, is started as a worker.
ray start --head --port="$port" --num-cpus=0 --num-gpus=0 --include-dashboard=false --disable-usage-stats
trap 'ray stop' EXIT
srun --overlap --ntasks="${#nodes[@]}" --ntasks-per-node=1 ray start --address="$address" --disable-usage-stats --block &

for _ in $(seq 60); do
    joined=$(python3 -c "import ray; ray.init('$address', logging_level='error'); print(sum(
        node['Alive'] and 'CPU' in node['Resources'] for node in ray.nodes()))" || echo 0)
    [ "$joined" -ge "${#nodes[@]}" ] && break
    sleep 5
done

if [ "${1:-}" = resume ]; then
    bakeoff "$@"
else
    bakeoff "$@" --cluster auto
fi
