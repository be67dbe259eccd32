async fn transfer(from: u64, to: u64) -> Result<(), ApiError> {
    __private::for_editor!(__private::option::key, __private::option::lease);
    let (__outside, __inside) = __private::entry();
    return __private::locked(
        __outside,
        (),
        async move {
            if let Some(__value) = __private::returns::<Result<(), ApiError>>() {
                return __value;
            }
            #[allow(clippy::shadow_same)]
            let from = from;
            #[allow(clippy::shadow_same)]
            let to = to;
            __private::for_editor!(::core::format_args!("account:{from}"));
            let __key1 = __private::key(
                const { &__private::Template::new("account:{from}") },
                &[__private::text("account:"), __private::value(&&from)],
            );
            let __key2 = __private::exact_key(owner(to).await?);
            let __key = [__key1, __key2];
            let __manager = __private::default_manager();
            let __options = __private::options();
            let lease = __inside.acquire_all(__manager, __key, __options).await;
            ({ bank::transfer(from, to, lease.fencing_tokens()).await })
        },
        <Result<(), ApiError> as __private::FromLockError>::__conversion(),
        |__value, __lock| __private::sent_by(&__value).finish(__value, __lock),
    )
    .await;
}
