# SPDX-License-Identifier: Apache-2.0
# Airflow's official image with this distribution installed: for the scheduler, the API server, workers and pods.
ARG AIRFLOW_IMAGE=apache/airflow:3.3.2-python3.12

FROM ${AIRFLOW_IMAGE} AS wheel
COPY --chown=50000:0 pyproject.toml README.md LICENSE /tmp/source/
COPY --chown=50000:0 dispatcher /tmp/source/dispatcher
COPY --chown=50000:0 workers /tmp/source/workers
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /tmp/wheel /tmp/source

FROM ${AIRFLOW_IMAGE}
COPY --from=wheel --chown=50000:0 /tmp/wheel /tmp/wheel
# Airflow is named with its version, so that pip can neither upgrade nor downgrade it.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" /tmp/wheel/*.whl \
    && rm -r /tmp/wheel/* \
    && mkdir -m 0770 /opt/airflow/cluster \
    && ln -s "$(python -c 'import dispatcher.example_dags as e; print(e.__path__[0])')" /opt/airflow/example_dags
